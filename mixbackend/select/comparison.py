"""Comparison: a plan by estimates, the baseline, and others run a graph's first call; the quickest runs from then on.

Place: beside ``tuner``, asked by ``compile.first_calls`` for graphs that nothing was measured of.
Input: candidates, the values of the first call. Output: what each of them took.
Method: the plan that looks best among many is often not the quickest. A few others, which ``comparison_gpu`` chooses,
are compiled as well, and all take turns in this process, until the quickest is told from the others or a bound on turns
is reached. Of a graph with symbolic sizes the quickest here must not promise to be slower at the other sizes that it
will run (``cross_size_check``). Where: on GPUs, where measuring is asked for; elsewhere the user's own calls compare
(``live``). Inference, forward and backward.
Invariants: nothing is called more often than the user asked unless that can be put back, before each run; the time of
compiling and that of running are bounded, but for one compilation and one round. Candidates verify their regions like
any other graph.
Non-goals: measuring apart from this process; that is what ``tuner`` does.
Units: seconds.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mixbackend.contracts import Plan
from mixbackend.execute.run_function import Run
from mixbackend.execute.state_restore import RepeatedCall
from mixbackend.graph.identity import Captured
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.environment import Environment
from mixbackend.plan.planner import Planner
from mixbackend.select.comparison_gpu import GpuHarness
from mixbackend.select.cross_size_check import SLOWER_ELSEWHERE
from mixbackend.select.decision import MEASURED, NO_TIME, Trial
from mixbackend.select.runnable import Runnable
from mixbackend.select.turns import take_turns


class Harness(Protocol):
    """How candidates are compared on one kind of device: which, for how long, and what a turn is."""

    @property
    def compiling_s(self) -> float:
        """After so long, no further rival is compiled."""

    @property
    def running_s(self) -> float:
        """After running candidates for so long, no further one begins, and no further round."""

    @property
    def turns(self) -> int:
        """Of each candidate that is not far behind, at least."""

    @property
    def most_turns(self) -> int:
        """While noise may hide which candidate is the quickest."""

    def rivals(self, baseline: Runnable, planner: Planner) -> tuple[Choice, ...]:
        """What may be quicker than a graph as it is placed, the likeliest first."""

    def why_not(self, baseline: Runnable, values: Sequence[Any], rivals: int) -> str:
        """Why so many rivals are not compared at this call; empty if they may be."""

    def prepared(
        self, graphs: Sequence[Runnable], values: Sequence[Any]
    ) -> contextlib.AbstractContextManager[RepeatedCall]:
        """Entered while candidates run the call; what they change is put back before each run, and at the end."""

    def warm(self, run: Run, call: RepeatedCall) -> None:
        """Let a candidate run the call until later runs are like one another."""

    def turn(self, run: Run, call: RepeatedCall) -> float:
        """Seconds of a call."""

    def give_back(self) -> None:
        """Called when those that were slower are not held any more."""


@dataclass(frozen=True)
class BuiltCandidate:
    """One way to run the graph, built in this process.

    Attributes:
        choice: what tells it from the others.
        entry: the compiled graph.
        estimated_s: of its plan.
    """

    choice: Choice
    entry: Runnable
    estimated_s: float = 0.0


def harness_for(captured: Captured, environment: Environment) -> Harness | None:
    """What compares a graph on a GPU, as far as is known before it is placed; ``None`` if it may not be compared."""
    search = environment.config.search
    if environment.config.objective != "latency":
        return None
    device = gpu_of(captured)
    names = tuple(node.name for node in captured.module.graph.find_nodes(op="placeholder"))
    # In other modes the first call may take no longer than it must; the calls that follow find out.
    if device is None or search.mode != "measure" or search.first_call_gpu_s <= 0.0:
        return None
    return GpuHarness(search.first_call_gpu_s, device, environment.records, names)


def gpu_of(captured: Captured) -> int | None:
    """Number of the first GPU that inputs of a graph are on; ``None`` if there is none."""
    values = (node.meta.get("val") for node in captured.module.graph.find_nodes(op="placeholder"))
    found = (value.device for value in values if isinstance(value, torch.Tensor))
    return next((device.index or 0 for device in found if device.type == "cuda"), None)


def compare(
    candidates: Sequence[BuiltCandidate],
    call: RepeatedCall,
    harness: Harness,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Trial, ...]:
    """What candidates take, in turns; those that are far behind soon have no more.

    The last candidate, the baseline, runs on if none is quicker: it is the first to run, and what it raises is raised.
    """
    rounds: dict[int, list[float]] = {}
    left: dict[int, Trial] = {}
    last = len(candidates) - 1
    end = math.inf
    for number in (last, *range(last)):
        candidate = candidates[number]
        if clock() > end:
            detail = f"the {harness.running_s:g} s for running candidates were spent"
            left[number] = Trial(candidate.choice, candidate.estimated_s, NO_TIME, detail)
            continue
        try:
            harness.warm(candidate.entry, call)
            # What the first run takes, verification included, is the user's own.
            end = min(end, clock() + harness.running_s)
            rounds[number] = [harness.turn(candidate.entry, call)]
        except Exception as error:
            if number == last:
                raise
            left[number] = failed_trial(candidate.choice, candidate.estimated_s, error)
    take_turns(
        rounds,
        lambda number: harness.turn(candidates[number].entry, call),
        harness.turns,
        harness.most_turns,
        lambda: clock() > end,
    )
    return tuple(
        left[number]
        if number in left
        else Trial(candidate.choice, candidate.estimated_s, MEASURED, rounds_s=tuple(rounds[number]))
        for number, candidate in enumerate(candidates)
    )


def simplest_first(trials: Sequence[Trial], plan: Plan | None) -> Sequence[Trial]:
    """Among equals the first wins: one backend alone, that with the least estimate; the plan; other mixtures.

    Args:
        trials: of all candidates.
        plan: of the default choice, which may be one backend alone as well.
    """
    is_alone = plan is not None and len({region.backend for region in plan.regions}) == 1

    def rank(trial: Trial) -> tuple[int, float]:
        if trial.choice.single or (is_alone and trial.choice == DEFAULT):
            return 0, trial.estimated_s
        return (1 if trial.choice == DEFAULT else 2), 0.0

    return sorted(trials, key=rank)


def failed_trial(choice: Choice, estimated_s: float, error: Exception) -> Trial:
    """Of a candidate that could not be built or run."""
    return Trial(choice, estimated_s, "failed", f"{type(error).__name__}: {error}")


def trial_text(trial: Trial) -> str:
    """What a candidate did, in a word or two."""
    if trial.median_s is None:
        return trial.status
    left = f", {trial.detail}" if trial.status == SLOWER_ELSEWHERE else ""
    return f"{1e3 * trial.median_s:.3g} ms{left}"
