"""A recorded graph with a collective in it, where no GPU is: what runs it counts, and torch's trees are stood in for.

A recording does not run anything. So while the stand-in records, collectives are left out; a replay runs them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import CompiledRegion, InputRole, Plan, PlannedRegion
from mixbackend.execute.answers import ExecutionPolicy
from mixbackend.execute.cuda_graphs import collectives, recorded
from mixbackend.execute.cuda_graphs.recorded import RecordedGraph, RecordingSource
from mixbackend.execute.region_code import RegionCode
from mixbackend.execute.region_executor import RegionExecutor
from mixbackend.execute.stitch import stitch
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
EXCHANGE = "_c10d_functional.all_reduce.default"


class PlantedError(RuntimeError):
    """What tests have go wrong."""


class Tree:
    """Stands in for torch's: the first call warms up, the second records and replays, others replay.

    Args:
        wrong: takes ``before``, ``warmed up``, ``recording`` or ``recorded`` and the number of the call; may raise.
    """

    def __init__(self, wrong: Callable[[str, int], None] = lambda when, call: None) -> None:
        self.capturing = False
        self.calls = 0
        self._wrong = wrong
        self.held: list[frozenset[str]] = []
        """Of every recording, the groups that are told to outlive it."""
        self.again = False
        """Whether the next call is to record anew; weights that have moved are recorded anew in any case."""

    def record(
        self, function: Any, names: Sequence[str], results: int, static: Sequence[int], *_: Any
    ) -> Callable[[list[Any]], Sequence[Any]]:
        """As ``cuda_graph_recorded``."""
        calls = 0
        known: set[tuple[int, ...]] = set()

        def run(inputs: list[Any]) -> Sequence[Any]:
            nonlocal calls
            calls += 1
            self.calls = calls
            self._wrong("before", calls)
            if calls == 1:
                made = function(inputs)
                self._wrong("warmed up", calls)
                return made
            addresses = tuple(inputs[place].data_ptr() for place in static)
            if addresses not in known or self.again:
                self.again = False
                known.add(addresses)
                self._recorded(function, list(inputs), calls)
            # A replay calls nobody; here it is the kernels of what was recorded.
            return getattr(function, "bare", function)(inputs)

        return run

    def _recorded(self, function: Any, inputs: list[Any], calls: int) -> None:
        self.capturing = True
        try:
            with _WithoutCollectives():
                self._wrong("recording", calls)
                function(inputs)
            self._wrong("recorded", calls)
        finally:
            self.capturing = False


class _WithoutCollectives(TorchDispatchMode):
    """Tells nobody anything."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "_c10d_functional":
            return func(*args, **(kwargs or {}))
        return args[0] if func is c10d.wait_tensor.default else args[0].clone()


class Counting(EagerBackend):
    """Eager, which notes what it runs, but for what is only recorded."""

    def __init__(self, tree: Tree, wrong: Callable[[str], None] = lambda op: None) -> None:
        self._tree = tree
        self._wrong = wrong
        self.ran: list[str] = []

    def compile(self, region: Any) -> CompiledRegion:
        """As eager."""
        inner = super().compile(region).run
        ops = [view.op for view in region.views]

        def run(inputs: list[Any]) -> Sequence[Any]:
            for op in ops:
                self._wrong(op)
            if not self._tree.capturing:
                self.ran += ops
            return inner(inputs)

        return CompiledRegion(run)

    @property
    def exchanges(self) -> int:
        """How often this rank took part in the collective."""
        return self.ran.count(EXCHANGE)


def layer(value: torch.Tensor) -> torch.Tensor:
    """A collective between two operators."""
    return aten.sigmoid(c10d.wait_tensor(c10d.all_reduce(aten.neg(value), "sum", "0")))


def recorded_layer(
    patch: Any, tree: Tree, backend: Counting, function: Callable[..., Any] = layer, weights: int = 0
) -> tuple[RecordedGraph, list[tuple[str, str]]]:
    """A function as a recorded graph with a region for each operator, and the events of it.

    Args:
        patch: of pytest.
        weights: how many arguments it takes beside a value; all have four elements.
    """
    patch.setattr(recorded, "cuda_graph_recorded", tree.record)
    patch.setattr(recorded, "ends_with_groups", lambda names, device: tree.held.append(names))
    patch.setattr(recorded, "obstacle_of", lambda bound, *_: "")
    patch.setattr(collectives, "why_group_is_not_recorded", lambda name, device: "")
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: tree.capturing)
    roles = {place: PlaceholderRole(InputRole.PARAMETER) for place in range(1, weights + 1)}
    module, graph = trace_graph(function, [torch.ones(4) for _ in range(weights + 1)], roles=roles)
    planned = [PlannedRegion(f"r{place}", "eager", (node.name,)) for place, node in enumerate(graph.placed_nodes)]
    regions = cut_regions(module, graph, Plan(graph.id, graph.phase, graph.dynamic, tuple(planned)))
    faults: deque[Any] = deque()
    policy = ExecutionPolicy("off", 3.0, strict=False)
    executors = tuple(
        RegionExecutor(bound.region, RegionCode(backend, backend.compile(bound.region)), policy, faults)
        for bound in regions
    )
    stitched = stitch(module, graph, regions, executors)
    events: list[tuple[str, str]] = []
    source = RecordingSource(module, graph, regions, executors, stitched, {})
    return RecordedGraph(source, 0, lambda *told: events.append(told)), events
