"""How plans are compared at the first call on a processor: which candidates, if memory suffices, how calls are timed.

Place: below ``comparison``. Input: a graph as it was placed, the values of its first call. Output: choices, seconds.
Method: in inference the user's own calls compare (``live``). In training, libraries pack live weights in every call and
read transposed ones, and estimates were seen to be off by two: single backends that build quickly and mixtures without
those that own most of the plan are tried. Median seconds of single calls count; a long call is a turn by itself.
Invariants: only what runs on the processor and can be put back is called more often than the user asked; where nobody
knows how fast the machine is, nothing is tried.
Units: seconds.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.contracts import Backend, OpGraph, TensorMeta
from mixbackend.execute.run_function import Run
from mixbackend.execute.state_restore import Changes, RepeatedCall, may_repeat, repeated, why_not_repeated
from mixbackend.host.processes import memory_bytes
from mixbackend.plan.choice import Choice
from mixbackend.plan.planner import Planner
from mixbackend.select.calls import as_in_training, timed_calls
from mixbackend.select.rivals import alone, other_plans, without_owners
from mixbackend.select.runnable import Runnable

LEAST_S = 2e-4
"""Graphs that are estimated to take less are not worth a comparison."""
NEAR, QUICK_S = 1.15, 1.0
"""Single backends within this factor of the plan, by estimates, may be quicker, and those that compile in so long."""
MOST_MEMORY = 3 / 4
"""Of the machine, for the inputs of a graph that is compared: each candidate packs its weights once more."""
TURN_S = 0.06
LONG_CALL_S = 0.2
"""Beside which waking threads and filling caches is nothing: one call is a turn."""
MOST_RUNNING_S = 5.0
"""For running candidates, which takes no longer than compiling them may."""
NEAR_TRAINING = 2.5
MOST_ALONE, MOST_MIXTURES = 3, 2
"""In training, so many backends alone, and so many mixtures, are tried."""


@dataclass(frozen=True)
class ProcessorHarness:
    """How candidates are compared; see the module's docstring and ``comparison.Harness``.

    Attributes:
        compiling_s: after so long, no further rival is compiled.
        placeholders: names of the captured graph's inputs, in order.
        training: whether calls alternate with others on torch's threads: the other half of a step, and the optimizer.
    """

    compiling_s: float
    placeholders: tuple[str, ...]
    training: bool
    turns, most_turns = 3, 9

    @property
    def running_s(self) -> float:
        """After running candidates for so long, no further one begins, and no further round."""
        return min(self.compiling_s, MOST_RUNNING_S)

    @property
    def in_users_calls(self) -> bool:
        """In inference, where each call is a step."""
        return not self.training

    def worth_it(self, baseline: Runnable) -> bool:
        """Whether a graph takes long enough, on the processor alone, and what it changes can be put back."""
        graph = baseline.graph
        if baseline.plan.estimated_s < LEAST_S or not may_repeat(graph, self.placeholders):
            return False
        metas = (meta for node in graph.nodes for meta in node.outputs)
        return not any(isinstance(meta, TensorMeta) and meta.device.type != "cpu" for meta in metas)

    def rivals(self, baseline: Runnable, planner: Planner) -> tuple[Choice, ...]:
        """What may be quicker than a graph as it is placed, the likeliest first."""
        return _in_training(baseline, planner)

    def why_not(self, baseline: Runnable, values: Sequence[Any], rivals: int) -> str:
        """Why nothing is compared now; empty if it may be.

        The machine must have room for what every candidate makes of the weights, beside the weights themselves.
        """
        held = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
        packed = held * (rivals + 2)
        if packed > MOST_MEMORY * (memory_bytes() or math.inf):
            return (
                f"inputs and weights of {held / 2**20:.0f} MiB, packed {rivals + 1} times, fill too much of the machine"
            )
        return why_not_repeated(
            Changes.of_graphs([baseline.graph], self.placeholders), values, baseline.plan.estimated_s
        )

    def prepared(
        self, graphs: Sequence[Runnable], values: Sequence[Any]
    ) -> contextlib.AbstractContextManager[RepeatedCall]:
        """While candidates run: what they change is put back before each run, and at the end."""
        return repeated(values, Changes.of_graphs([graph.graph for graph in graphs], self.placeholders))

    def warm(self, run: Run, call: RepeatedCall) -> None:
        """The first run, which binds constants and verifies."""
        call.by(run)()

    def turn(self, run: Run, call: RepeatedCall) -> float:
        """Median seconds of a run, after one that wakes the threads and finds the caches full of others' weights."""
        again = call.by(run, as_in_training) if self.training else call.by(run)
        (first,) = timed_calls(again.run, 0.0, again.put_back, least=1)
        if first >= LONG_CALL_S:
            return first
        return statistics.median(timed_calls(again.run, TURN_S, again.put_back))

    def give_back(self) -> None:
        """Memory of those that were slower goes back by itself."""


def _in_training(baseline: Runnable, planner: Planner) -> tuple[Choice, ...]:
    """Single backends that build quickly, or are near; then mixtures without the plan's owners."""
    plan, limit = baseline.plan, NEAR_TRAINING * baseline.plan.estimated_s
    known, owners = planner.costs.comparable(baseline.graph), {region.backend for region in plan.regions}
    near = sorted(
        (seconds, name)
        for name, seconds in alone(baseline.layout.other, plan).items()
        if name in known and {name} != owners and seconds <= limit
    )
    tried = [
        name
        for seconds, name in near
        if seconds <= plan.estimated_s * NEAR or _build_s(planner.backend(name), baseline.graph) <= QUICK_S
    ]
    names = tried[:MOST_ALONE]
    mixed = other_plans(baseline, planner, without_owners(baseline, planner), frozenset(names), limit)
    return (*(Choice(single=name) for name in names), *mixed[:MOST_MIXTURES])


def _build_s(backend: Backend, graph: OpGraph) -> float:
    return backend.build_seconds("cpu").of(len(graph.placed_nodes))
