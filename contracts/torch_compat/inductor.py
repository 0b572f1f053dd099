"""Inductor as one backend among others.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat.operators import composite_implicit
from mixbackend.contracts.torch_compat.output_strides import keep_output_strides, output_strides


def inductor_handling(operator: Any) -> str:
    """How inductor treats an operator overload: ``lowered``, ``decomposed``, ``fallback`` (calls eager), ``none``."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.lowering import fallbacks, lowerings

    if operator in lowerings:
        return "fallback" if operator in fallbacks else "lowered"
    return "decomposed" if operator in select_decomp_table() or composite_implicit(operator) else "none"


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
        exact_outputs: positions of the outputs that must have the strides of their fake values.
        phase: ``inference``, ``forward`` or ``backward``.
        static_inputs: positions of inputs that are the same tensors at every call, with aligned memory.

    Returns:
        A callable on one list of arguments, which it empties.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    with _as_region(fake_mode, exact_outputs, graph_module):
        if config.use_joint_graph_passes:
            expected, old = output_strides(graph_module), frozenset(graph_module.graph.nodes)
            graph_module = joint_graph_passes(graph_module)
            keep_output_strides(graph_module, inputs, expected, exact_outputs, old)
        output = next(iter(graph_module.graph.find_nodes(op="output")))
        output.meta["user_visible_output_idxs"] = list(exact_outputs)
        return compile_fx_inner(
            graph_module,
            list(inputs),
            static_input_idxs=list(static_inputs),
            is_inference=phase == "inference",
            is_backward=phase == "backward",
        )


@contextlib.contextmanager
def _as_region(
    fake_mode: Any, exact_outputs: Sequence[int], graph_module: torch.fx.GraphModule | None = None
) -> Iterator[None]:
    """The settings under which a region is compiled, whatever the user's are for whole models."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    # Inductor's cache does not know which outputs are exact: it would give this graph the code of an equal one.
    tag = f"{torch.compiler.config.cache_key_tag} exact {list(exact_outputs)}"
    tagged = torch.compiler.config.patch(cache_key_tag=tag)  # type: ignore[attr-defined]
    fusing = config.epilogue_fusion and not (graph_module is not None and _attends_on_processor(graph_module))
    settings = config.patch(freezing=False, cpp_wrapper=False, epilogue_fusion=fusing)
    with V.set_fake_mode(fake_mode), settings, tagged:
        yield


def _attends_on_processor(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a graph holds attention with a template for processors that raises if anything is fused behind it."""
    found = graph_module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.flex_attention)
    return any(node.args[0].meta["val"].device.type == "cpu" for node in found)


def inductor_entry(compiled: Any) -> str | None:
    """Name of a compiled graph in inductor's own cache; ``None`` if it cannot be had from there.

    The entry may be written later than this is asked.
    """
    from torch._inductor import config

    # What records CUDA graphs is made anew in each process, from the graph.
    name = None if config.triton.cudagraphs else getattr(compiled, "_fx_graph_cache_key", None)
    return name if isinstance(name, str) and name.isalnum() else None


def inductor_surroundings(fake_mode: Any, exact_outputs: Sequence[int]) -> str | None:
    """Text that is equal where inductor makes the same of the same region: torch, its settings, threads, the machine.

    Args:
        fake_mode: call inside ``tracing_apart(fake_mode)``.
        exact_outputs: see ``inductor_compile``.

    Returns:
        Inductor's own key of an empty graph; ``None`` if nothing may be taken from its cache now.
    """
    from torch._inductor import config
    from torch._inductor.codecache import FxGraphCache

    if config.force_disable_caches or not config.fx_graph_cache:
        return None
    with _as_region(fake_mode, exact_outputs):
        # A tensor on the processor, for the number of threads is part of such graphs' keys.
        key, _ = FxGraphCache.prepare_key(_nothing(), [torch.zeros(1)], {}, (), remote=False)
    return None if key is None else str(key[0])


def inductor_load(entry: str, fake_mode: Any, exact_outputs: Sequence[int], phase: str) -> Any:
    """What ``inductor_compile`` returned in another process, where ``inductor_surroundings`` was the same.

    Args:
        entry: of ``inductor_entry``.
        fake_mode: a fresh one; call inside ``tracing_apart(fake_mode)``.
        exact_outputs: see ``inductor_compile``.
        phase: see ``inductor_compile``.

    Raises:
        FileNotFoundError: inductor's cache has no such entry, or not what it refers to.
    """
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraphConstants
    from torch._inductor.utils import BoxedBool

    constants, backward = CompiledFxGraphConstants(), phase == "backward"
    with _as_region(fake_mode, exact_outputs):
        graph, _ = FxGraphCache.load_with_key(entry, [], [], True, None, backward, constants)
        if graph is None:
            raise FileNotFoundError(f"inductor's cache has no entry {entry}")
        graph.post_compile([], constants, {"cudagraphs": BoxedBool(False), "is_backward": backward})
    graph._fx_graph_cache_key = entry
    return graph


def _nothing() -> torch.fx.GraphModule:
    """A graph that returns its input."""
    graph = torch.fx.Graph()
    graph.output((graph.placeholder("value"),))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def inductor_settings() -> str:
    """Text of every inductor setting that changes what it compiles."""
    from torch._inductor import config

    return repr(sorted(config.save_config_portable().items()))


def inductor_choices() -> dict[str, Any]:
    """Its settings that are not those it comes with here, as far as JSON tells them: for another process."""
    from torch._inductor import config

    entries = config._config  # type: ignore[attr-defined]
    changed = {name: value for name, value in config.save_config_portable().items() if value != entries[name].default}
    return {name: value for name, value in changed.items() if isinstance(value, str | bool | int | float | None)}


def set_inductor_choices(choices: Mapping[str, Any]) -> None:
    """Take over what another process told, for good."""
    from torch._inductor import config

    known = config._config  # type: ignore[attr-defined]
    config.patch({name: value for name, value in choices.items() if name in known}).__enter__()


def inductor_measures() -> bool:
    """Whether inductor may run kernels of the processor while it compiles, to see which is quickest."""
    from torch._inductor import config

    asked = (config.max_autotune, config.max_autotune_gemm, config.max_autotune_pointwise, config.benchmark_fusion)
    return any(asked) or config.cpu_backend != "cpp"


def inductor_decomposes_as_usual() -> bool:
    """Whether the settings that choose what inductor decomposes are those that torch comes with."""
    from torch._inductor import config

    return not (config.fallback_random or config.fallback_embedding_bag_byte_unpack)


def inductor_source(compiled: Any) -> str:
    """The code that inductor generated for a compiled graph, ``""`` if it is not at hand."""
    return str(getattr(compiled, "source_code", "") or "")


def inductor_attends_on_processor() -> bool:
    """Whether inductor has a kernel here for attention with functions of its own."""
    from torch._inductor.kernel.flex.flex_cpu import check_cpu_supported

    return bool(check_cpu_supported())
