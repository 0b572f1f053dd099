"""Compile a few lines of torch as oneDNN regions, as the planner places them, and hold the results against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.backends.onednn import OneDnnBackend
from mixbackend.contracts import (
    CompiledRegion,
    InputRole,
    NodeMatch,
    Plan,
    Preference,
    Region,
    SymbolicSize,
    TensorMeta,
    Unsupported,
)
from mixbackend.contracts.numerics import find_deviation
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.priors import prior_rates
from mixbackend.execute.strides import layout_of
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place
from mixbackend.partitioner.roofline import RooflineCostModel

_PREFERRED = Preference(NodeMatch(), "prefer", "onednn", factor=1e-3)
"""Examples are small, and a call of the library is dear: without this the planner would rightly leave them to eager."""

_WIDENED = (torch.float16, torch.bfloat16, torch.float32)


@dataclass
class Built:
    """One region of a function and what was compiled of it; calling it checks it."""

    function: Callable[..., Any]
    region: Region
    compiled: CompiledRegion
    plan: Plan
    constants: tuple[int, ...]
    metas: dict[str, TensorMeta]
    patterns: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.patterns = tuple(pattern for pattern, _ in self.region.matches)

    def values(self, inputs: Sequence[Any]) -> list[Any]:
        """The region's arguments: placeholders come in the order of the function's, but not all are used."""
        sizes: dict[Any, int] = {}
        tensors = dict(zip(self.metas, inputs, strict=True))
        for name, tensor in tensors.items():
            meta = self.metas[name]
            for size, actual in zip(meta.shape, tensor.shape, strict=True):
                if isinstance(size, SymbolicSize) and size.expression.is_Symbol:
                    sizes[size.expression] = actual
        return [
            tensors[item.name] if isinstance(item.meta, TensorMeta) else int(item.meta.expression.subs(sizes))
            for item in self.region.inputs
        ]

    def bind(self, inputs: Sequence[Any]) -> Any:
        """The code bound to the constants among these inputs."""
        values = self.values(inputs)
        known = [
            value if item.role is InputRole.CONSTANT else None
            for item, value in zip(self.region.inputs, values, strict=True)
        ]
        assert self.compiled.bind is not None
        with torch.no_grad():
            return self.compiled.bind(known)

    def check(self, *inputs: Any) -> list[torch.Tensor]:
        """Run live and, if there are constants, bound; both must be as right as eager."""
        live = self._hold(inputs, self.compiled.run, self.values(inputs))
        if not self.constants:
            return live
        hidden = [
            None if item.role is InputRole.CONSTANT else value
            for item, value in zip(self.region.inputs, self.values(inputs), strict=True)
        ]
        return self._hold(inputs, self.bind(inputs).run, hidden)

    def _hold(self, inputs: Sequence[Any], run: Callable[..., Any], values: list[Any]) -> list[torch.Tensor]:
        before = [item.clone() for item in inputs]
        with torch.no_grad():
            results = list(run(values))
            eager = _listed(self.function(*inputs))
            exact = _listed(self.function(*[_wide(item) for item in inputs]))
        assert len(results) == len(eager)
        budget = OneDnnBackend().traits().error_budget
        for index, (result, expected, reference) in enumerate(zip(results, eager, exact, strict=True)):
            deviation = find_deviation(index, result, expected, reference, budget)
            assert deviation is None, f"{deviation}\n{self.compiled.source}"
            layout = layout_of(self.region, self.region.outputs[index].meta)
            assert self.compiled.strides != "as_traced" or layout is None or layout(values)(result) is result
        assert all(torch.equal(old, new) or bool(new.isnan().any()) for old, new in zip(before, inputs, strict=True))
        return results


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.dtype in _WIDENED else value


def _listed(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


class Bench:
    """Places, compiles, compares."""

    def __init__(self) -> None:
        self.backend = OneDnnBackend()
        self.backends = [self.backend, EagerBackend()]
        device = prior_device("cpu")
        self.costs = RooflineCostModel(device, {item.name: prior_rates(item, device) for item in self.backends})

    def refusals(self, function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> list[Unsupported]:
        """Every refusal of the backend for a function's ops."""
        _, graph = trace_graph(function, inputs, dynamic=dynamic)
        verdicts = [self.backend.judge(graph.view(node.name)) for node in graph.placed_nodes]
        return [verdict for verdict in verdicts if isinstance(verdict, Unsupported)]

    def plan(self, function: Callable[..., Any], *inputs: Any) -> Plan:
        """Where the planner puts a function's ops, eager being the other choice."""
        return place(trace_graph(function, inputs)[1], self.backends, self.costs)

    def build(
        self, function: Callable[..., Any], *inputs: Any, constants: Sequence[int] = (), dynamic: bool = False
    ) -> Built:
        """A function that must become one region of this backend."""
        roles = {index: PlaceholderRole(InputRole.CONSTANT) for index in constants}
        module, graph = trace_graph(function, inputs, dynamic=dynamic, roles=roles)
        plan = place(graph, self.backends, self.costs, preferences=[_PREFERRED])
        assert [item.backend for item in plan.regions] == ["onednn"], plan
        region = cut_regions(module, graph, plan)[0].region
        metas = {item.name: item.meta for item in graph.inputs if isinstance(item.meta, TensorMeta)}
        return Built(function, region, self.backend.compile(region), plan, tuple(constants), metas)

    def check(self, function: Callable[..., Any], *inputs: Any, constants: Sequence[int] = ()) -> Built:
        """Build, run, compare."""
        built = self.build(function, *inputs, constants=constants)
        built.check(*inputs)
        return built


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Examples are too small for several threads, which only wait for one another on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
