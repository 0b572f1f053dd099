"""How plans are compared at the first call on a GPU: which candidates, if memory suffices, how calls are timed.

Place: below ``comparison``. Input: a graph as it was placed, the values of its first call. Output: choices, seconds.
Method: estimates err more here than on a processor: a kernel's rate depends on its shape by factors, and what libraries
choose among their kernels is not known before. So the nearest backends alone are tried, then the mixtures without those
that own most of the plan. In modes with CUDA graphs, candidates are recorded too, in trees and memory of their own: it
is replays that are timed, by the GPU's own marks, and what the user has recorded is left alone.
Invariants: before each run and after a comparison, random numbers go on where they were and inputs that the graph
writes into hold what they held; at the end its recordings and their memory are gone; the winner is recorded anew for
good. The caller's stream, autocast and grad mode are those of the call.
Units: seconds, bytes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.contracts import OpGraph
from mixbackend.contracts.torch_compat import cuda_graphs_apart
from mixbackend.execute.cuda_graphs import device_of
from mixbackend.execute.run_function import Run
from mixbackend.execute.state_restore import Changes, RepeatedCall, may_repeat, repeated, why_not_repeated
from mixbackend.plan.choice import Choice
from mixbackend.plan.planner import Planner
from mixbackend.select.gpu_block import STEADY_CALLS, seconds_in_block
from mixbackend.select.gpu_memory import why_too_large
from mixbackend.select.rivals import EVERY_BACKEND, alone, other_plans, without_owners
from mixbackend.select.runnable import Runnable

LEAST_S = 5e-5
"""Graphs that are estimated to take less are not worth a comparison."""
NEAR = 2.5
"""A candidate estimated within this factor of the baseline may be quicker: sums over whole models were seen to be off
by up to three, and more so for mixtures of small kernels than for one compiler."""
MOST_ALONE, MOST_MIXTURES = 3, 3
"""So many backends alone, and so many mixtures, are tried: whole models take a compiler 7 to 30 seconds. Of those alone
two may be libraries, which build in no time, so that a compiler has a place beside them."""
MOST_OF_TIME = 0.5
"""Of the time for compiling, for a backend with rates that were only assumed."""
MOST_RUNNING_S = 20.0
"""For running candidates, warming up and recording included, which takes no longer than compiling them may."""


@dataclass(frozen=True)
class GpuHarness:
    """How candidates are compared; see the module's docstring and ``comparison.Harness``.

    Attributes:
        compiling_s: after so long, no further rival is compiled.
        device: number of the GPU.
        replayed: whether kernels are replayed as CUDA graphs.
        placeholders: names of the captured graph's inputs, in order.
    """

    compiling_s: float
    device: int
    replayed: bool
    placeholders: tuple[str, ...]
    turns, most_turns = 5, 15

    @property
    def running_s(self) -> float:
        """After running candidates for so long, no further one begins, and no further round."""
        return min(self.compiling_s, MOST_RUNNING_S)

    def rivals(self, baseline: Runnable, planner: Planner) -> tuple[Choice, ...]:
        """What may be quicker than a graph as it is placed, the likeliest first.

        Backends alone come before mixtures: of many mixtures the one with the best estimate is taken, so that its
        estimate is the more hopeful.
        """
        graph, plan = baseline.graph, baseline.plan
        if graph.dynamic or plan.estimated_s < LEAST_S or device_of(graph) != self.device:
            return ()
        if not may_repeat(graph, self.placeholders):
            return ()
        usable, owners = self._usable(graph, planner), {region.backend for region in plan.regions}
        limit = NEAR * plan.estimated_s
        near = sorted(
            (seconds, name) for name, seconds in alone(baseline.layout.other, plan).items() if seconds <= limit
        )
        # A single backend's own plan is the one that is there.
        names = [name for _, name in near if name in usable and {name} != owners][:MOST_ALONE]
        mixtures = (EVERY_BACKEND, *without_owners(baseline, planner))
        mixed = other_plans(baseline, planner, mixtures, frozenset(names), limit)
        return (*(Choice(single=name) for name in names), *mixed[:MOST_MIXTURES])

    def _usable(self, graph: OpGraph, planner: Planner) -> set[str]:
        """Backends of which more than priors is known, and others that build quickly: running them tells."""
        found = set(planner.comparable(graph))
        for backend in planner.backends:
            traits, seconds = backend.traits(), backend.build_seconds("cuda").of(len(graph.placed_nodes))
            if "cuda" in traits.device_types and not traits.reference and seconds <= MOST_OF_TIME * self.compiling_s:
                found.add(backend.name)
        return found

    def why_not(self, baseline: Runnable, values: Sequence[Any], rivals: int) -> str:
        """Why nothing is compared now: for want of memory, or since the user records; empty if it may be."""
        if torch.cuda.is_current_stream_capturing():
            return "the call is part of a CUDA graph of the user's"
        changes = Changes.of_graphs([baseline.graph], self.placeholders)
        lacking = why_too_large(baseline.graph, changes, values, self.device, rivals)
        return lacking or why_not_repeated(changes, values, baseline.plan.estimated_s)

    @contextlib.contextmanager
    def prepared(self, graphs: Sequence[Runnable], values: Sequence[Any]) -> Iterator[RepeatedCall]:
        """While candidates run: their recordings are apart; what they change is put back before each run and after."""
        with contextlib.ExitStack() as stack:
            changes = Changes.of_graphs([graph.graph for graph in graphs], self.placeholders, [self.device])
            call = stack.enter_context(repeated(values, changes))
            if self.replayed:
                stack.enter_context(_rehearsed(graphs))
                stack.enter_context(cuda_graphs_apart(self.device))
            yield call

    def warm(self, run: Run, call: RepeatedCall) -> None:
        """Run until later runs are like one another."""
        again = call.by(run)
        for _ in range(STEADY_CALLS):
            again()

    def turn(self, run: Run, call: RepeatedCall) -> float:
        """Mean seconds of a run in a block of them."""
        return seconds_in_block(run, call, self.device)

    def give_back(self) -> None:
        """Let the GPU have what those that were slower held."""
        gc.collect()
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _rehearsed(graphs: Sequence[Runnable]) -> Iterator[None]:
    for graph in graphs:
        graph.rehearse(True)
    try:
        yield
    finally:
        for graph in graphs:
            graph.rehearse(False)
