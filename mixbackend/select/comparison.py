"""A plan by estimates is held against others at the first call of its graph: the quickest of them runs from then on.

Place: beside ``tuner``, asked by ``compile.comparing`` for graphs that nothing was measured of.
Input: the graph as it was placed, a way to build it as another choice says, the values of the first call. Output: the
quickest of them; what was found is handed on with its plan, so that later starts search for none.
Method: the plan that looks best among many is often not the quickest. A few others, which ``comparison_processor`` and
``comparison_gpu`` choose, are compiled as well, and all take turns in this process, until the quickest is told from the
others or they have had enough. Of a graph with symbolic sizes the quickest here must not promise to be slower at the
other sizes that it will run (``elsewhere``).
Where: on processors; on GPUs in modes whose first call may take longer. Inference, forward and backward.
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
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from mixbackend.compile.compiled_graphs import Placed
from mixbackend.compile.placed import PlacedGraph
from mixbackend.compile.regimes import RegimeGraph
from mixbackend.contracts import Plan
from mixbackend.contracts.rehint import Hints
from mixbackend.execute.repeating import RepeatedCall
from mixbackend.execute.run_function import Run
from mixbackend.graph.identity import Captured
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.environment import Environment
from mixbackend.plan.layout_choice import named_layout
from mixbackend.plan.planner import Planner
from mixbackend.reporting import Event
from mixbackend.select.comparison_gpu import GpuGround
from mixbackend.select.comparison_processor import ProcessorGround
from mixbackend.select.decision import MEASURED, NO_TIME, Decision, Trial, decide
from mixbackend.select.elsewhere import SLOWER_ELSEWHERE, why_slower
from mixbackend.select.turns import take_turns


class Ground(Protocol):
    """Where candidates are compared."""

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
        """While noise may hide who is the quickest."""

    def rivals(self, home: PlacedGraph, planner: Planner) -> tuple[Choice, ...]:
        """What may be quicker than a graph as it is placed, the likeliest first."""

    def why_not(self, home: PlacedGraph, values: Sequence[Any], rivals: int) -> str:
        """Why so many rivals are not compared at this call; empty if they may be."""

    def prepared(
        self, graphs: Sequence[PlacedGraph], values: Sequence[Any]
    ) -> contextlib.AbstractContextManager[RepeatedCall]:
        """Entered while candidates run the call; what they change is put back before each run, and at the end."""

    def warm(self, run: Run, call: RepeatedCall) -> None:
        """Let a candidate run the call until later runs are like one another."""

    def turn(self, run: Run, call: RepeatedCall) -> float:
        """Seconds of a call."""

    def give_back(self) -> None:
        """Called when nobody holds those that were slower any more."""


@dataclass(frozen=True)
class Candidate:
    """One way to run the graph.

    Attributes:
        choice: what tells it from the others.
        run: the compiled graph.
        graphs: what was placed for it.
    """

    choice: Choice
    run: Run
    graphs: Sequence[Placed]

    @property
    def placed(self) -> PlacedGraph | None:
        """The placed graph, for the sizes of the first call; ``None`` if building it failed."""
        first = self.graphs[0] if len(self.graphs) == 1 else None
        return first.home if isinstance(first, RegimeGraph) else first

    @property
    def planned(self) -> Choice:
        """Its choice with the plan that it came to, so that nobody need search for that again."""
        placed = self.placed
        if placed is None:
            return self.choice
        plan, layout = (
            canonical_plan(placed.plan, placed.graph),
            self.choice.layout or named_layout(placed.layout.record),
        )
        return replace(self.choice, plan=plan, layout=layout, name=str(self.choice))

    @property
    def estimated_s(self) -> float:
        """Of its plan; 0 without one."""
        return 0.0 if self.placed is None else self.placed.plan.estimated_s


def ground_of(captured: Captured, environment: Environment) -> Ground | None:
    """Where a graph may be compared, as far as can be told before it is placed; ``None`` if it may not be."""
    search = environment.config.search
    if environment.config.objective != "latency":
        return None
    device = gpu_of(captured)
    names = tuple(node.name for node in captured.module.graph.find_nodes(op="placeholder"))
    if device is None:
        training = captured.phase != "inference"
        return ProcessorGround(search.first_call_s, names, training) if search.first_call_s > 0.0 else None
    # Elsewhere the first call may take no longer than it must.
    patient = environment.records or search.mode == "measure"
    if not patient or search.first_call_gpu_s <= 0.0:
        return None
    return GpuGround(search.first_call_gpu_s, device, environment.records, names)


def gpu_of(captured: Captured) -> int | None:
    """Number of the first GPU that inputs of a graph are on; ``None`` if there is none."""
    values = (node.meta.get("val") for node in captured.module.graph.find_nodes(op="placeholder"))
    found = (value.device for value in values if isinstance(value, torch.Tensor))
    return next((device.index or 0 for device in found if device.type == "cuda"), None)


@dataclass(frozen=True)
class Comparison:
    """Compares a placed graph with its rivals; to be called once, with the values of the first call.

    Attributes:
        graph_id: the graph's name in reports.
        environment: where events are told, and what prices plans.
        ground: where they are compared.
        home: the graph as it is placed by estimates.
        choices: the rivals.
        build: makes a candidate, or raises.
        forget: told of the graphs of those that were slower.
        remember: told of the decision.
        sizes: others that the decision is for, of a graph with symbolic ones.
    """

    graph_id: str
    environment: Environment
    ground: Ground
    home: Candidate
    choices: Sequence[Choice]
    build: Callable[[Choice], Candidate]
    forget: Callable[[Sequence[Placed]], None]
    remember: Callable[[Decision], None]
    sizes: Sequence[Hints] = ()

    def __call__(self, values: Sequence[Any]) -> Candidate:
        """The quickest candidate; the values are left as they are."""
        home = self.home.placed
        reason = "" if home is None else self.ground.why_not(home, values, len(self.choices))
        if reason:
            self._tell(f"not compared at the first call: {reason}")
        rivals, failed = ([], []) if reason else self._rivals()
        if not rivals and not failed:
            return self.home
        candidates = [*rivals, self.home]
        try:
            trials = (*self._compared(candidates, values), *failed)
            decision = decide(simplest_first(trials, None if home is None else home.plan))
        except torch.OutOfMemoryError as error:
            self._tell(f"not compared at the first call: {error}")
            decision = Decision(self.home.choice)
        winner = next(item for item in candidates if item.choice == decision.choice)
        if decision.trials:
            self._keep(winner, decision)
        for candidate in candidates:
            if candidate is not winner:
                self.forget(candidate.graphs)
        return winner

    def _compared(self, candidates: Sequence[Candidate], values: Sequence[Any]) -> tuple[Trial, ...]:
        graphs = [candidate.placed for candidate in candidates if candidate.placed is not None]
        with self.ground.prepared(graphs, values) as call:
            *rivals, home = compare(candidates, call, self.ground)
        mine = self.home.placed
        if mine is None:
            return (*rivals, home)
        pairs = zip(candidates, rivals, strict=False)
        left = (self._elsewhere(candidate, trial, mine, home) for candidate, trial in pairs)
        return (*left, home)

    def _elsewhere(self, candidate: Candidate, trial: Trial, mine: PlacedGraph, home: Trial) -> Trial:
        """What a rival did; who promises to be slower at other sizes does not win."""
        if candidate.placed is None:
            return trial
        detail = why_slower(candidate.placed, trial, mine, home, self.sizes, self.environment.planner)
        return replace(trial, status=SLOWER_ELSEWHERE, detail=detail) if detail else trial

    def _keep(self, winner: Candidate, decision: Decision) -> None:
        self.remember(replace(decision, choice=winner.planned))
        shown = ", ".join(f"{trial.choice} {_shown(trial)}" for trial in decision.trials)
        self._tell(f"took {decision.choice} at the first call ({shown})")
        if winner.placed is not None:
            winner.placed.settle(decision)

    def _tell(self, detail: str) -> None:
        self.environment.events.append(Event("tuning", self.graph_id, "", "", detail))

    def _rivals(self) -> tuple[list[Candidate], list[Trial]]:
        """Those that could be built in time, and those that could not be built."""
        begun = time.monotonic()
        built: list[Candidate] = []
        failed: list[Trial] = []
        for choice in self.choices:
            if time.monotonic() - begun > self.ground.compiling_s:
                break
            try:
                built.append(self.build(choice))
            except Exception as error:
                failed.append(_failed(choice, 0.0, error))
        return built, failed


def compare(
    candidates: Sequence[Candidate],
    call: RepeatedCall,
    ground: Ground,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Trial, ...]:
    """What candidates take, in turns; those that are far behind soon have no more.

    The last candidate is the one that runs if nobody is quicker: it is the first to run, and what it raises is raised.
    """
    rounds: dict[int, list[float]] = {}
    left: dict[int, Trial] = {}
    last = len(candidates) - 1
    end = math.inf
    for number in (last, *range(last)):
        candidate = candidates[number]
        if clock() > end:
            detail = f"the {ground.running_s:g} s for running candidates were spent"
            left[number] = Trial(candidate.choice, candidate.estimated_s, NO_TIME, detail)
            continue
        try:
            ground.warm(candidate.run, call)
            # What the first run takes, verification included, is the user's own.
            end = min(end, clock() + ground.running_s)
            rounds[number] = [ground.turn(candidate.run, call)]
        except Exception as error:
            if number == last:
                raise
            left[number] = _failed(candidate.choice, candidate.estimated_s, error)
    take_turns(
        rounds,
        lambda number: ground.turn(candidates[number].run, call),
        ground.turns,
        ground.most_turns,
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


def _failed(choice: Choice, estimated_s: float, error: Exception) -> Trial:
    return Trial(choice, estimated_s, "failed", f"{type(error).__name__}: {error}")


def _shown(trial: Trial) -> str:
    if trial.median_s is None:
        return trial.status
    left = f", {trial.detail}" if trial.status == SLOWER_ELSEWHERE else ""
    return f"{1e3 * trial.median_s:.3g} ms{left}"
