"""A backend of Dynamo, ``fn(gm, example_inputs)``, as a backend of a mixture.

Place: made by ``mixbackend.from_dynamo``; registered by the user, by a plug-in's entry point, or by being named in a
configuration. Input: regions. Output: compiled regions with live weights.
A region is re-traced under a fake mode of its own, so that whatever the function asks of sizes adds no guard to the
captured graph, and is handed over as Dynamo hands over graphs: placeholders (symbols first), ATen operators without
gradients, a tuple at the end. What it promises is what every such function may be held to, and no more: strides of
inputs are as traced, one call at a time, nothing of how its outputs lie.
Non-goals: artifacts (what such a function returns cannot be stored), recording, random and writing ops.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.fx

from mixbackend.backends.common.retrace import Retraced, retrace_apart
from mixbackend.backends.dynamo.identity import distribution_of, identity_of
from mixbackend.backends.dynamo.support import Support, Supports, ops_of
from mixbackend.contracts import (
    Availability,
    Backend,
    CompiledRegion,
    ContractError,
    DecompositionLevel,
    OpView,
    Region,
    SymbolicSize,
    TensorMeta,
    Traits,
    UnknownBackendError,
    ValueMeta,
    Verdict,
    check_backend,
    hint_of,
)
from mixbackend.contracts.gpu import gpu_fingerprint
from mixbackend.contracts.support import BOOLEANS, FLOATS, INTEGERS
from mixbackend.contracts.torch_compat import dynamo_backend, dynamo_backend_names, tracing_apart, written_at_once

CompileFunction = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
"""What ``torch.compile(backend=...)`` takes: a graph and one value per placeholder in, what runs it out."""

Inputs = Literal["fake", "zeros"]

_PACKAGES = {"tvm": ("tvm",), "openxla": ("torch_xla",), "openxla_eval": ("torch_xla",)}
"""What the functions that torch ships under these names call."""


@dataclass(frozen=True)
class DynamoCompiler:
    """A function of Dynamo and how it is to be called.

    Attributes:
        function: see ``CompileFunction``.
        support: what it takes.
        decomposition: of the graphs that it is given.
        inputs: ``fake`` tensors as examples, or real ones of ``zeros``.
        packages: import names of packages that it needs, with versions that change what it does.
    """

    function: CompileFunction
    support: Support
    decomposition: DecompositionLevel
    inputs: Inputs
    packages: tuple[str, ...]

    def fingerprint(self) -> str:
        """Of everything that changes what it compiles."""
        support = self.support
        ops = identity_of(support.ops).text if callable(support.ops) else _listed(support.ops)
        parts = [f"torch={torch.__version__} fn={identity_of(self.function).text} ops={ops}"]
        parts += [f"dtypes={_listed(map(str, support.dtypes))} devices={_listed(support.devices)}"]
        parts += [f"dynamic={support.dynamic} level={self.decomposition} inputs={self.inputs}"]
        parts += [f"{package}={distribution_of(package)}" for package in self.packages]
        if "cuda" in support.devices and torch.cuda.is_available():
            parts.append(f"gpu={gpu_fingerprint()}")
        return f"{' '.join(parts)} cpu={torch.backends.cpu.get_cpu_capability()}"


class DynamoBackend(Backend):
    """See the module's docstring; ``from_dynamo`` makes a class of its own for each name.

    Args:
        compiler: what compiles.
    """

    contract_version = "1.0"

    def __init__(self, compiler: DynamoCompiler) -> None:
        self.compiler = compiler

    def __eq__(self, other: object) -> bool:
        """Made of the same under the same name: registering both is no error."""
        same = isinstance(other, DynamoBackend) and other.name == self.name
        return same and cast(DynamoBackend, other).compiler == self.compiler

    def __hash__(self) -> int:
        return hash(self.name)

    def availability(self) -> Availability:
        """Where the packages that it needs are installed."""
        missing = [
            package for package in self.compiler.packages if importlib.util.find_spec(package.partition(".")[0]) is None
        ]
        if missing:
            return Availability(False, f"it needs {', '.join(missing)}, which cannot be imported here")
        packages = self.compiler.packages or (identity_of(self.compiler.function).module,)
        return Availability(True, version=distribution_of(packages[0]).rpartition(" ")[2])

    def fingerprint(self) -> str:
        """Of the function, and of how it is called."""
        return self.compiler.fingerprint()

    def traits(self) -> Traits:
        """What holds for every function of Dynamo."""
        return Traits(
            device_types=self.compiler.support.devices,
            decomposition=self.compiler.decomposition,
            deterministic=False,
            reentrant=False,
            compiles_graphs=self.compiler.support.takes_all,
            exact_input_strides=True,
        )

    def judge(self, view: OpView) -> Verdict:
        """By what the user said that it supports."""
        return self.compiler.support.judge(view)

    def compile(self, region: Region) -> CompiledRegion:
        """Hand a region over as Dynamo hands over graphs."""
        traced = retrace_apart(region, self.compiler.decomposition)
        # TorchScript reads a module's class, and must not find that of one with code that is written later.
        graph_module = torch.fx.GraphModule(traced.graph_module, traced.graph_module.graph)
        source = graph_module.code
        if not traced.originals:
            # What is made fake anew, too, has the sizes that it has: no size is a symbol.
            traced.fake_mode.static_shapes = True
        with tracing_apart(traced.fake_mode), written_at_once():
            inputs = list(traced.inputs) if self.compiler.inputs == "fake" else _zeros(region, traced)
            compiled = self.compiler.function(graph_module, inputs)
        if not callable(compiled):
            raise TypeError(f"{self.name} returned a {type(compiled).__name__} instead of something to call")
        return CompiledRegion(
            run=_runner(self.name, compiled, traced.arguments),
            preconditions=traced.preconditions(),
            source=source,
        )


def from_dynamo(
    fn: str | CompileFunction,
    *,
    name: str | None = None,
    supports: Supports = "pure",
    dtypes: Collection[torch.dtype] | None = None,
    devices: Collection[str] = ("cpu",),
    dynamic: bool = False,
    decomposition: DecompositionLevel = "none",
    inputs: Inputs = "fake",
    packages: Collection[str] | None = None,
) -> DynamoBackend:
    """Any backend of ``torch.compile`` as a backend of a mixture.

    ``mixbackend.auto({"backends": [mixbackend.from_dynamo(my_fn), "eager"]})`` registers it for this process and uses
    it; a plug-in's entry point may name what this returns. Nothing is known of its speed: it is chosen where a rule
    asks for it, and by seconds that ``supports`` states; where it takes every op, whole graphs are tried on it in the
    user's calls, and stay where they are faster. What it raises, at compiling or in a call, and what it computes wrong
    is an event, and the region goes elsewhere.

    Args:
        fn: ``fn(gm, example_inputs)``, or a name that torch knows: ``"tvm"``, ``"openxla"``, ``"aot_eager"``. ``gm``
            has one placeholder per value of ``example_inputs``, holds ATen operators without gradients (forward and
            backward come as graphs of their own, weights are inputs), and returns a tuple of tensors. What ``fn``
            returns is called with one argument per placeholder and returns as many tensors, in a tuple or a list.
        name: in configurations and reports; by default the function's, or the name that torch knows.
        supports: ``"pure"``, every op without random numbers, writes and other effects; ``"aten"``, those of torch's
            own operators alone; a collection of operators or their names (``"aten.add"``, ``"aten.add.Tensor"``); or a
            function of ``contracts.OpView`` that returns whether it takes the op, or a verdict: ``Supported(seconds)``,
            ``Unsupported(code, reason)``. It is asked only about pure ops of the types and devices below.
        dtypes: of all tensors; by default floating point, integers and booleans.
        devices: device types of all tensors.
        dynamic: whether symbolic sizes are fine. They then come as Dynamo's do: integers before the tensors.
        decomposition: of the ops in ``gm``: ``"none"``, ``"core_aten"``, ``"prims"``, ``"inductor"``.
        inputs: ``"fake"`` tensors as examples, as AOTAutograd takes them, or real ones, of ``"zeros"``, for a compiler
            that runs the graph to trace it; these have one size, and do not go with ``dynamic``.
        packages: import names of packages behind it: without them it is unavailable, and another version of one is
            another compiler. The distribution of ``fn`` counts by itself. What is defined in ``__main__``, a closure
            or an object is known in this process alone: of its timings and failures nothing is used in another.

    Raises:
        UnknownBackendError: torch knows no backend of this name; lists those that it knows.
        ContractError: it cannot be called, is mixbackend itself, has no usable name, or ``supports`` says no operators,
            or arguments do not go together.
    """
    function = _function_of(fn)
    known_as = fn if isinstance(fn, str) else getattr(fn, "__name__", "")
    if dynamic and inputs == "zeros":
        raise ContractError(
            what="inputs='zeros' does not go with dynamic=True: real examples have one size",
            hint="leave one of them out",
        )
    support = Support(
        ops_of(supports),
        frozenset(FLOATS | INTEGERS | BOOLEANS if dtypes is None else dtypes),
        frozenset(devices),
        dynamic,
    )
    needed = _PACKAGES.get(fn, ()) if isinstance(fn, str) and packages is None else (packages or ())
    compiler = DynamoCompiler(function, support, decomposition, inputs, tuple(needed))
    made = _class_of(name or known_as, identity_of(function).module)(compiler)
    check_backend(made)
    return made


def _class_of(name: str, module: str) -> type[DynamoBackend]:
    """A class as the function's own module would have it: its source counts where that is no installed package."""
    made = type(
        "DynamoBackend", (DynamoBackend,), {"name": name, "__module__": module, "__doc__": DynamoBackend.__doc__}
    )
    return cast("type[DynamoBackend]", made)


def _function_of(fn: str | CompileFunction) -> CompileFunction:
    if isinstance(fn, str) and fn not in dynamo_backend_names():
        raise UnknownBackendError(
            what=f"torch knows no backend {fn!r}; it knows {', '.join(dynamo_backend_names())}",
            hint="install the package that registers it, or give from_dynamo() the function itself",
        )
    function: object = dynamo_backend(fn) if isinstance(fn, str) else fn
    if not callable(function):
        raise ContractError(
            what=f"from_dynamo() takes a function of a graph and its inputs, not a {type(fn).__name__}",
            hint="give it fn(gm, example_inputs), or the name of a backend of torch.compile",
        )
    if type(function).__module__.partition(".")[0] == __name__.partition(".")[0]:
        raise ContractError(
            what="mixbackend cannot be a backend of its own mixture",
            hint="name the backends that the inner mixture was to have in the outer one",
        )
    return function


def _runner(
    name: str, compiled: Callable[..., Any], arguments: Callable[[Sequence[Any]], list[Any]]
) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
    def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        results = compiled(*arguments(inputs))
        if isinstance(results, (tuple, list)):
            return results
        raise TypeError(f"what {name} compiled returned a {type(results).__name__} instead of a tuple of tensors")

    return run


def _zeros(region: Region, traced: Retraced) -> list[Any]:
    """Real values for the placeholders of a graph, of the sizes that were seen."""
    return traced.arguments([_zero(item.meta) for item in region.inputs])


def _zero(meta: ValueMeta) -> Any:
    if not isinstance(meta, TensorMeta):
        return hint_of(meta) if isinstance(meta, SymbolicSize) else meta
    shape, stride = map(hint_of, meta.shape), map(hint_of, meta.stride)
    return torch.empty_strided(tuple(shape), tuple(stride), dtype=meta.dtype, device=meta.device).zero_()


def _listed(items: Any) -> str:
    return items if isinstance(items, str) else ",".join(sorted(items))
