"""The only door to torch's private names.

Place: imported by whoever needs something that torch does not promise to keep.
Invariants: no other module of the project imports a name with a leading underscore from torch, or from a module whose
path has one; ``tests/test_torch_compat.py`` exercises every name here, so a new torch release is this file's work.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

# --- operators -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SchemaArgument:
    """One argument of an operator's schema."""

    name: str
    has_default: bool
    default: Any
    keyword_only: bool


def is_operator(target: object) -> bool:
    """Whether an fx target is one overload of a torch operator."""
    return isinstance(target, torch._ops.OpOverload)


def is_higher_order(target: object) -> bool:
    """Whether an fx target is a higher-order operator (cond, while, flex attention, ...)."""
    return isinstance(target, torch._ops.HigherOrderOperator)


def schema_arguments(operator: Any) -> tuple[SchemaArgument, ...]:
    """The arguments of an operator overload, in schema order."""
    return tuple(
        SchemaArgument(
            argument.name,
            argument.has_default_value(),
            argument.default_value if argument.has_default_value() else None,
            argument.kwarg_only,
        )
        for argument in operator._schema.arguments
    )


def is_mutating(operator: Any) -> bool:
    """Whether an operator overload writes into an argument."""
    return bool(operator._schema.is_mutable)


def returns_nothing(operator: Any) -> bool:
    """Whether an operator overload has no result."""
    return not operator._schema.returns


# --- symbolic sizes --------------------------------------------------------------------------------------------------


def symbolic_expression(size: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Expr:
    """The expression behind a symbolic number."""
    return size.node.expr


def symbolic_hint(size: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """Its value in the captured run, ``None`` if it depends on data; adds no guard."""
    return size.node.hint if size.node.has_hint() else None


def symbolic_bounds(size: torch.SymInt) -> tuple[int, int | None]:
    """Inclusive bounds that always hold; ``None`` above if there is no bound. Adds no guard."""
    shape_env: ShapeEnv = size.node.shape_env
    bounds = shape_env.bound_sympy(size.node.expr)
    lower = int(bounds.lower) if bounds.lower.is_finite and bounds.lower > 0 else 0
    unbounded = not bounds.upper.is_finite or bounds.upper > 2**40
    return lower, None if unbounded else int(bounds.upper)


# --- dispatch modes --------------------------------------------------------------------------------------------------


def without_dispatch_modes() -> Any:
    """Context in which no fake-tensor or proxy mode is active: real tensors may be touched."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def walk_metadata(node: torch.fx.Node) -> Iterator[tuple[str, Any]]:
    """(path, class) of the modules an fx node ran in, outermost first; forward modules for backward nodes."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    yield from stack.values()


# --- tracing apart from the ambient compilation ----------------------------------------------------------------------


def fresh_fake_mode() -> Any:
    """A fake-tensor mode with symbols of its own: what is asked of them adds no guard to anybody else's graph."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


def fresh_symbol(fake_mode: Any, name: str, hint: int, lower: int, upper: int | None) -> torch.SymInt:
    """A new symbolic integer of a fake mode with a value to assume and inclusive bounds that always hold."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic
    from torch.utils._sympy.numbers import int_oo

    shape_env: ShapeEnv = fake_mode.shape_env
    symbol = shape_env.create_symbol(
        hint,
        ConstantSource(name),
        DimDynamic.DYNAMIC,
        positive=True if lower > 0 else None,
        do_not_specialize_zero_one=True,
    )
    shape_env.constrain_symbol_range(symbol, lower, int_oo if upper is None else upper)
    return shape_env.create_symintnode(symbol, hint=hint)  # type: ignore[return-value]


def symbolic_integer(fake_mode: Any, expression: sympy.Expr, hint: int | None) -> Any:
    """An expression over a fake mode's symbols as a symbolic integer."""
    return fake_mode.shape_env.create_symintnode(expression, hint=hint)


def assumptions(fake_mode: Any, bounds: Mapping[sympy.Symbol, tuple[int, int | None]]) -> tuple[sympy.Basic, ...]:
    """What was assumed about a fake mode's symbols and does not follow from these inclusive bounds.

    (torch's own filter uses bounds that the assumptions themselves have narrowed.)
    """
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    ranges = {symbol: ValueRanges(low, int_oo if high is None else high) for symbol, (low, high) in bounds.items()}
    always = ValueRanges(sympy.true, sympy.true)
    guards = dict.fromkeys(guard.expr for guard in fake_mode.shape_env.guards)
    return tuple(guard for guard in guards if bound_sympy(guard, ranges) != always)


@contextlib.contextmanager
def tracing_apart(fake_mode: Any) -> Iterator[None]:
    """Trace or compile as if no other compilation was going on, with this fake mode as the ambient one."""
    from torch._guards import TracingContext, tracing

    with without_dispatch_modes(), tracing(TracingContext(fake_mode)), torch.no_grad():
        yield


def rerun_fake(target: Any, arguments: Any, keywords: Any) -> Any:
    """Call an operator on fake values in their own mode: which strides its result has. Adds no guard.

    Raises:
        Exception: the operator refuses the values.
    """
    from torch.utils._pytree import tree_leaves, tree_map_only

    mode = next(value.fake_mode for value in tree_leaves((arguments, keywords)) if is_fake(value))
    fake = tree_map_only(
        torch.Tensor, lambda value: value if is_fake(value) else mode.from_tensor(value), (arguments, keywords)
    )
    quiet = contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards()
    with without_dispatch_modes(), torch.no_grad(), quiet, mode:
        return target(*fake[0], **fake[1])


def decomposition_table(level: str) -> dict[Any, Any]:
    """Decompositions of a level of ``contracts.DecompositionLevel``."""
    if level == "none":
        return {}
    if level == "inductor":
        # Some of its decompositions look for this module without importing it.
        import torch._inductor.lowering
        from torch._inductor.decomposition import select_decomp_table

        return dict(select_decomp_table())
    import torch._decomp

    if level == "core_aten":
        return dict(torch._decomp.core_aten_decompositions())
    if level == "prims":
        import torch._refs

        return dict(torch._decomp.decomposition_table)
    raise ValueError(f"{level!r} is not a decomposition level: none, core_aten, prims or inductor")


def storage_key(value: torch.Tensor) -> int:
    """Equal for tensors that share storage, fake ones too, while both are alive."""
    return value.untyped_storage()._cdata


def operator_by_name(name: str) -> Any | None:
    """The operator overload called ``aten.add.Tensor``; ``None`` if torch has none of this name."""
    parts = name.split(".")
    if len(parts) != 3:
        return None
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    return getattr(packet, parts[2], None)


# --- region text -----------------------------------------------------------------------------------------------------

_SYMBOLIC_FUNCTIONS = (
    "FloorDiv",
    "ModularIndexing",
    "Mod",
    "PythonMod",
    "CeilDiv",
    "CleanDiv",
    "CeilToInt",
    "FloorToInt",
    "TruncToInt",
    "RoundToInt",
    "ToFloat",
    "IntTrueDiv",
    "FloatTrueDiv",
    "PowByNatural",
    "FloatPow",
    "Max",
    "Min",
    "LShift",
    "RShift",
)


def symbolic_functions() -> dict[str, Any]:
    """Torch's own sympy functions that appear in sizes, by class name; those that this torch has."""
    from torch.utils._sympy import functions

    found = {name: getattr(functions, name, None) for name in _SYMBOLIC_FUNCTIONS}
    return {name: function for name, function in found.items() if function is not None}


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """What is known of one symbol of a captured graph.

    Attributes:
        kind: ``size`` (positive, backed), ``integer`` (any sign, backed) or ``unbacked`` (depends on data).
        lower, upper: inclusive bounds, ``None`` if unbounded.
        hint: its value in the captured run.
    """

    kind: str
    lower: int | None
    upper: int | None
    hint: int | None


def symbol_facts(shape_env: ShapeEnv, symbol: sympy.Symbol) -> SymbolFacts:
    """Kind, range and hint of a symbol; adds no guard."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    bounds = shape_env.var_to_range.get(symbol)
    # Torch's integer infinity counts as a finite integer in sympy: ask for the class of plain numbers.
    lower = int(bounds.lower) if bounds is not None and isinstance(bounds.lower, sympy.Integer) else None
    upper = int(bounds.upper) if bounds is not None and isinstance(bounds.upper, sympy.Integer) else None
    if symbol_is_type(symbol, SymT.UNBACKED_INT):
        return SymbolFacts("unbacked", lower, upper, None)
    values = getattr(shape_env, "backed_var_to_val", None)
    hint = (shape_env.var_to_val if values is None else values).get(symbol)
    return SymbolFacts("size" if symbol.is_positive else "integer", lower, upper, None if hint is None else int(hint))


def declare_symbol(shape_env: ShapeEnv, name: str, facts: SymbolFacts) -> sympy.Symbol:
    """A new symbol of a shape environment, with the given range and hint."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    if facts.kind == "unbacked":
        symbol = shape_env.create_unbacked_symint().node.expr
        shape_env.pending_fresh_unbacked_symbols.clear()
    else:
        symbol = shape_env.create_symbol(
            _stand_in(facts) if facts.hint is None else facts.hint,
            ConstantSource(f"mixbackend_{name}"),
            DimDynamic.DYNAMIC,
            positive=True if facts.kind == "size" else None,
            do_not_specialize_zero_one=True,
        )
    lower = -int_oo if facts.lower is None else facts.lower
    upper = int_oo if facts.upper is None else facts.upper
    shape_env.var_to_range[symbol] = ValueRanges(lower, upper)
    return symbol


def _stand_in(facts: SymbolFacts) -> int:
    """A value inside the range, for symbols that come without a hint."""
    lower = 2 if facts.lower is None else max(facts.lower, 2)
    return lower if facts.upper is None else min(lower, facts.upper)


def symbolic_number(shape_env: ShapeEnv, expression: sympy.Expr) -> Any:
    """The ``SymInt`` of an integer expression over symbols of a shape environment; a plain ``int`` for numbers."""
    return shape_env.create_symintnode(expression, hint=None)


def is_fake(value: object) -> bool:
    """Whether a tensor is fake: it has a shape, but no data."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor)


# --- inductor --------------------------------------------------------------------------------------------------------


def inductor_handling(operator: Any) -> str:
    """How inductor treats an operator overload: ``lowered``, ``decomposed``, ``fallback`` (calls eager), ``none``."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.lowering import fallbacks, lowerings

    if operator in lowerings:
        return "fallback" if operator in fallbacks else "lowered"
    return "decomposed" if operator in select_decomp_table() or composite_implicit(operator) else "none"


def composite_implicit(operator: Any) -> bool:
    """Whether an operator overload is defined by other operators for every device (``reshape``, ``linear``)."""
    return operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def inductor_compile(
    graph_module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    fake_mode: Any,
    exact_outputs: Sequence[int],
    phase: str,
    static_inputs: Sequence[int] = (),
) -> Any:
    """Compile an ATen graph, already in inductor's decomposition, as inductor compiles a forward or backward graph.

    Args:
        graph_module: changed in place.
        inputs: fake values of its placeholders.
        fake_mode: their mode; call inside ``tracing_apart(fake_mode)``.
        exact_outputs: positions of the outputs whose strides must be those of their fake values.
        phase: ``inference``, ``forward`` or ``backward``.
        static_inputs: positions of inputs that are the same tensors at every call, with aligned memory.

    Returns:
        A callable on one list of arguments, which it empties.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    # Inductor's cache does not know which outputs are exact: it would give this graph the code of an equal one.
    tag = f"{torch.compiler.config.cache_key_tag} exact {list(exact_outputs)}"
    tagged = torch.compiler.config.patch(cache_key_tag=tag)  # type: ignore[attr-defined]
    with V.set_fake_mode(fake_mode), config.patch(freezing=False, cpp_wrapper=False), tagged:
        if config.use_joint_graph_passes:
            expected = _output_strides(graph_module)
            graph_module = joint_graph_passes(graph_module)
            _keep_output_strides(graph_module, inputs, expected, exact_outputs)
        output = next(iter(graph_module.graph.find_nodes(op="output")))
        output.meta["user_visible_output_idxs"] = list(exact_outputs)
        return compile_fx_inner(
            graph_module,
            list(inputs),
            static_input_idxs=list(static_inputs),
            is_inference=phase == "inference",
            is_backward=phase == "backward",
        )


def _output_strides(graph_module: torch.fx.GraphModule) -> list[tuple[Any, ...] | None]:
    """Of the tensors among a graph's outputs."""
    (output,) = graph_module.graph.find_nodes(op="output")
    return [_strides(node) for node in output.args[0]]


def _strides(node: Any) -> tuple[Any, ...] | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return tuple(value.stride()) if isinstance(value, torch.Tensor) else None


def _keep_output_strides(
    graph_module: torch.fx.GraphModule, inputs: Sequence[Any], expected: Sequence[Any], exact: Sequence[int]
) -> None:
    """Copy outputs that passes gave gaps (products padded for a GPU) back to where they must lie, row after row."""
    from torch._inductor.compile_fx import fake_tensor_prop

    fake_tensor_prop(graph_module, list(inputs))
    (output,) = graph_module.graph.find_nodes(op="output")
    results = list(output.args[0])
    for place in exact:
        node, strides = results[place], expected[place]
        actual = _strides(node)
        static = all(isinstance(step, int) for step in (*(strides or ()), *(actual or ())))
        if strides is None or not static or actual == strides or node.op == "placeholder":
            continue
        with graph_module.graph.inserting_before(output):
            clone = torch.ops.aten.clone.default
            copy = graph_module.graph.call_function(clone, (node,), {"memory_format": torch.contiguous_format})
        copy.meta["val"] = clone(node.meta["val"], memory_format=torch.contiguous_format)
        if tuple(copy.meta["val"].stride()) == strides:
            results[place] = copy
    output.args = (type(output.args[0])(results),)
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


# --- CUDA graphs ------------------------------------------------------------------------------------------------------


def cuda_graph_recorded(
    function: Any,
    names: Sequence[str],
    results: int,
    static: Sequence[int],
    device: int,
    phase: str,
    constants: Sequence[torch.Tensor] = (),
) -> Any:
    """A function as a CUDA graph of torch's own trees: run once as it is, then recorded, then replayed.

    Args:
        function: takes a list of tensors on the device and integers, empties it, and returns a sequence of tensors.
        names: of its arguments, for torch's messages.
        results: how many tensors it returns.
        static: positions of arguments that are the same memory at every call; others are copied into the graph's own.
        device: number of the device.
        phase: ``inference``, ``forward`` or ``backward``: how long results live.
        constants: tensors that the function reads beside its arguments, as long as it lives.

    Returns:
        A callable like the function. Its results are valid until the model is called again.
    """
    from torch._inductor.cudagraph_trees import cudagraphify_impl
    from torch._inductor.cudagraph_utils import PlaceholderInfo

    return cudagraphify_impl(
        function,
        [None] * len(names),  # type: ignore[list-item]
        tuple(static),
        device_index=device,
        is_backward=phase == "backward",
        is_inference=phase == "inference",
        stack_traces=[None] * results,
        constants=tuple(constants),
        placeholders=tuple(PlaceholderInfo(name, None, [], None) for name in names),
    )


def cuda_graph_obstacle(graph_module: torch.fx.GraphModule) -> str:
    """Name of an operator that cannot be recorded into a CUDA graph; empty if there is none."""
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    node = get_first_incompatible_cudagraph_node(graph_module)
    return "" if node is None else str(node.target)


def cuda_graphs_enter_backward(device: int) -> None:
    """Say that a backward runs outside of CUDA graphs: what the forward's graphs left may be reused afterwards."""
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(device, create_if_none_exists=False)
    if manager is not None:
        manager.set_to_running_backward()


def copies_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors with the same values and strides in memory of their own; launches few kernels on a GPU."""
    copies = [
        torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        for tensor in tensors
    ]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


def forget_cuda_graphs() -> None:
    """Drop all CUDA graphs of torch's trees, and their memory."""
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    reset_cudagraph_trees()


def inductor_settings() -> str:
    """Text of every inductor setting that changes what it compiles."""
    from torch._inductor import config

    return repr(sorted(config.save_config_portable().items()))


def inductor_source(compiled: Any) -> str:
    """The code that inductor generated for a compiled graph, ``""`` if it is not at hand."""
    return str(getattr(compiled, "source_code", "") or "")


def shape_env_of(value: object) -> Any:
    """The shape environment that a fake tensor or symbolic number belongs to, ``None`` for plain values."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.shape_env
    mode = getattr(value, "fake_mode", None) if is_fake(value) else None
    return None if mode is None else mode.shape_env


# --- capture ---------------------------------------------------------------------------------------------------------


def aot_compile(
    graph_module: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    forward: Any,
    backward: Any,
    inference: Any,
    partition: Any,
) -> Any:
    """Run AOTAutograd with minimal decompositions on a Dynamo graph; returns the callable for Dynamo.

    Each compiler is called as ``compiler(graph_module, fake_inputs)`` and returns a callable on flat arguments;
    ``partition`` splits a joint graph into forward and backward.
    """
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions={},
        keep_inference_input_mutations=True,
    )(graph_module, example_inputs)


def boxed(function: Any) -> Any:
    """Mark a function as taking one list of arguments that it empties."""
    function._boxed_call = True
    return function


def input_position(node: torch.fx.Node) -> int | None:
    """Position among Dynamo's inputs of the value behind a placeholder of an AOTAutograd graph, if it is one."""
    description = node.meta.get("desc")
    position = getattr(description, "idx", None)
    return position if type(description).__name__ == "PlainAOTInput" else None


def is_tangent(node: torch.fx.Node) -> bool:
    """Whether a placeholder of a backward graph is an incoming gradient."""
    return "Tangent" in type(node.meta.get("desc")).__name__ or node.name.startswith("tangents")


def source_name(node: torch.fx.Node) -> str:
    """How Dynamo reaches the value behind one of its placeholders, ``L['self']._parameters['weight']``."""
    source = getattr(node, "_dynamo_source", None)
    if source is None:
        return ""
    name = source.name
    return name() if callable(name) else str(name)


def is_static_input(node: torch.fx.Node) -> bool:
    """Whether Dynamo says that a placeholder is a parameter, a buffer or another tensor kept by a module."""
    return bool((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"))


def partition_with_min_cut(joint: Any, inputs: Any, **keywords: Any) -> Any:
    """Split a joint graph so that little is saved for the backward, recomputing what is cheap."""
    from functorch.compile import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(joint, inputs, **keywords)


def backward_compiled_at_once() -> Any:
    """Context in which the backward graph is compiled together with the forward graph."""
    import torch._functorch.config as functorch_config

    return functorch_config.patch(force_non_lazy_backward_lowering=True)


@contextlib.contextmanager
def outside_compilation() -> Iterator[None]:
    """Run as if no compilation was going on: real tensors stay real, and a new trace shares nothing with it."""
    from torch._guards import tracing

    with without_dispatch_modes(), tracing(None), torch.no_grad():
        yield


# --- processors ------------------------------------------------------------------------------------------------------


def has_fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 itself; elsewhere torch goes through float32, many times slower."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


# --- operator samples ------------------------------------------------------------------------------------------------


def operator_database() -> list[Any]:
    """torch's own database of operators with sample inputs (``OpInfo``); needs the package ``expecttest``."""
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


# --- native accessors ------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def native_tensor_accessors() -> tuple[int, int] | None:
    """Addresses of two C functions, ``None`` where this torch has not both.

    The first takes a Python tensor object and gives its data pointer (the GIL must be held). The second takes the
    address of a pointer to a tensor's implementation (``tensor_implementation``) and gives its version; it must not be
    called for tensors made in inference mode.
    """
    data_pointer = getattr(torch._C._dynamo.guards, "_torchinductor_pyobject_tensor_data_ptr", None)
    library = next(pathlib.Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"), None)
    if not isinstance(data_pointer, int) or library is None:
        return None
    try:
        version = ctypes.cast(ctypes.CDLL(str(library))._ZNK2at10TensorBase8_versionEv, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
    return None if version is None else (data_pointer, version)


def tensor_implementation(tensor: torch.Tensor) -> int:
    """Address of a tensor's implementation; valid while the tensor lives and is not swapped."""
    return int(tensor._cdata)


def storage_users(tensor: torch.Tensor) -> int:
    """How many tensors and storages share the tensor's memory, itself included."""
    storage = tensor.untyped_storage()
    # One of them is the object that was just made to ask.
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


# --- streams ----------------------------------------------------------------------------------------------------------


def raw_cuda_stream(device: int) -> int:
    """Handle of the current stream of a GPU: what the driver's functions take."""
    return torch._C._cuda_getCurrentRawStream(device)


def current_cuda_device() -> int:
    """Number of the current GPU, without torch's checks that there is one."""
    return torch._C._cuda_getDevice()
