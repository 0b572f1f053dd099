"""Compile a few lines of torch as one ONNX Runtime region and hold the results against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import sympy
import torch

from mixbackend.backends.onnxruntime import OnnxRuntimeBackend
from mixbackend.contracts import CompiledRegion, InputRole, OpGraph, Region, SymbolicSize, TensorMeta, Unsupported
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import whole_region
from mixbackend.graph.trace import trace_graph

_WIDENED = (torch.float16, torch.bfloat16, torch.float32)


def difference(actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, backend: OnnxRuntimeBackend) -> str:
    """What is wrong with a result by the backend's own error budget, or nothing."""
    if actual.shape != eager.shape or actual.dtype is not eager.dtype:
        return f"{actual.dtype}{tuple(actual.shape)} instead of {eager.dtype}{tuple(eager.shape)}"
    if not actual.dtype.is_floating_point:
        return "" if torch.equal(actual, eager) else f"{actual.flatten()[:8]} instead of {eager.flatten()[:8]}"
    plain = torch.isfinite(eager) & torch.isfinite(exact)
    odd = ~torch.isfinite(eager)
    if not torch.equal(torch.nan_to_num(actual[odd], nan=7.0), torch.nan_to_num(eager[odd], nan=7.0)):
        return f"{actual[odd]} instead of {eager[odd]}"
    if not plain.any():
        return ""
    budget = backend.traits().error_budget
    wide, reference = actual.double()[plain], exact.double()[plain]
    far, eager_far = (wide - reference).abs().max(), (eager.double()[plain] - reference).abs().max()
    allowed = budget.factor * eager_far + budget.floor * torch.finfo(actual.dtype).eps * reference.abs().max()
    return "" if far <= allowed else f"off by {far:.3g}, eager by {eager_far:.3g}, allowed {allowed:.3g}"


def input_values(graph: OpGraph, region: Region, tensors: dict[str, torch.Tensor]) -> list[Any]:
    """The arguments of a region: tensors by placeholder name, numbers solved from the tensors' sizes."""
    sizes: dict[sympy.Expr, int] = {}
    for item in graph.inputs:
        if isinstance(item.meta, TensorMeta):
            for size, actual in zip(item.meta.shape, tensors[item.name].shape, strict=True):
                if isinstance(size, SymbolicSize) and size.expression.is_symbol:
                    sizes[size.expression] = actual
    return [
        tensors[item.name] if isinstance(item.meta, TensorMeta) else _number(item.meta, sizes) for item in region.inputs
    ]


def _number(meta: Any, sizes: dict[sympy.Expr, int]) -> Any:
    return int(meta.expression.subs(sizes)) if isinstance(meta, SymbolicSize) else meta


@dataclass(frozen=True)
class Built:
    """A region, what was compiled from it, and how to call it with the function's own arguments."""

    graph: OpGraph
    region: Region
    compiled: CompiledRegion
    constants: dict[str, torch.Tensor]
    names: tuple[str, ...]
    outputs: tuple[str, ...]

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        given = {**self.constants, **dict(zip(self.names, inputs, strict=True))}
        values = input_values(self.graph, self.region, given)
        by_name = dict(zip((item.name for item in self.region.outputs), self.compiled.run(values), strict=True))
        return [by_name[name] for name in self.outputs]


class Workbench:
    """Builds regions and compares them."""

    def __init__(self) -> None:
        self.backend = OnnxRuntimeBackend()

    def refusals(self, function: Callable[..., Any], inputs: Sequence[Any], dynamic: bool = False) -> list[Unsupported]:
        """Every refusal of the backend for a function's ops."""
        _, graph = trace_graph(function, inputs, dynamic=dynamic)
        verdicts = [self.backend.judge(graph.view(node.name)) for node in graph.placed_nodes]
        return [verdict for verdict in verdicts if isinstance(verdict, Unsupported)]

    def build(
        self, function: Callable[..., Any], inputs: Sequence[Any], *, dynamic: bool = False, weights: Sequence[int] = ()
    ) -> Built:
        """Compile a function as one region; every op must be claimed."""
        roles = {index: PlaceholderRole(InputRole.PARAMETER) for index in weights}
        return self.built(*trace_graph(function, inputs, dynamic=dynamic, roles=roles))

    def built(self, module: torch.fx.GraphModule, graph: OpGraph) -> Built:
        """Compile a traced function."""
        for node in graph.placed_nodes:
            verdict = self.backend.judge(graph.view(node.name))
            assert not isinstance(verdict, Unsupported), f"{node.op}: {verdict}"
        region = whole_region(module, graph)
        names = tuple(node.name for node in module.graph.find_nodes(op="placeholder"))
        outputs = tuple(node.name for node in module.graph.output_node().args[0] if node is not None)
        lifted = module.graph.find_nodes(op="get_attr")
        constants = {node.name: getattr(module, str(node.target)) for node in lifted}
        return Built(graph, region, self.backend.compile(region), constants, names, outputs)

    def check(self, function: Callable[..., Any], *inputs: torch.Tensor, built: Built | None = None) -> Built:
        """Compile (unless given) and compare with eager, against float64."""
        built = built or self.build(function, inputs)
        with torch.no_grad():
            eager = _listed(function(*inputs))
            exact = _exact(function, inputs, eager)
        for index, (actual, expected, reference) in enumerate(zip(built(*inputs), eager, exact, strict=True)):
            problem = difference(actual, expected, reference, self.backend)
            assert not problem, f"output {index}: {problem}\n{built.compiled.source}"
        return built


def _listed(value: Any) -> list[torch.Tensor]:
    listed = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in listed if item is not None]


def _exact(function: Callable[..., Any], inputs: Sequence[torch.Tensor], eager: list[torch.Tensor]) -> list[Any]:
    """The results in float64; eager's own where the function insists on a type."""
    wide = [item.double() if item.dtype in _WIDENED else item for item in inputs]
    try:
        exact = _listed(function(*wide))
    except RuntimeError:
        return eager
    return [
        item if item.shape == own.shape and item.dtype in (own.dtype, torch.float64) else own
        for item, own in zip(exact, eager, strict=True)
    ]


@pytest.fixture(scope="session")
def workbench() -> Workbench:
    return Workbench()
