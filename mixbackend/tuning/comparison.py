"""A plan by estimates is held against others at the first call of its graph: the quickest of them runs from then on.

Place: beside ``tuner``, asked by ``runtime.compiling`` for graphs that nothing was measured of.
Input: the graph as it was placed, a way to build it as another choice says, the values of the first call. Output: the
quickest of them; what was found is remembered under the key of the graph, apart for calls that are replayed, and with
its plan, so that later starts search for none.
Method: the plan that looks best among many is often not the quickest. A few others, which ``comparison_processor`` and
``comparison_gpu`` choose, are compiled as well, and all take turns in this process, until the quickest is told from the
others or they have had enough.
Where: on processors; on GPUs in modes whose first call may take longer. Inference, forward and backward.
Invariants: nothing is called more often than the user asked unless that can be put back; the time is bounded, but for
one compilation. Candidates verify their regions like any other graph.
Non-goals: measuring apart from this process; that is what ``tuner`` does.
Units: seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from mixbackend.contracts import Plan, RegionTextError
from mixbackend.partitioner.portable import portable
from mixbackend.reporting import Event
from mixbackend.runtime.choice import DEFAULT, Choice
from mixbackend.runtime.compiled_graphs import Placed
from mixbackend.runtime.first_call import Run
from mixbackend.runtime.identity import Captured
from mixbackend.runtime.layout_choice import named_layout
from mixbackend.runtime.placed import PlacedGraph
from mixbackend.runtime.session import Session
from mixbackend.tuning import tuner
from mixbackend.tuning.comparison_gpu import GpuGround
from mixbackend.tuning.comparison_processor import ProcessorGround
from mixbackend.tuning.decision import MEASURED, Decision, Trial, decide
from mixbackend.tuning.turns import take_turns


class Ground(Protocol):
    """Where candidates are compared."""

    @property
    def compiling_s(self) -> float:
        """After so long, no further rival is compiled."""

    @property
    def turns(self) -> int:
        """Of each candidate that is not far behind, at least."""

    @property
    def most_turns(self) -> int:
        """While noise may hide who is the quickest."""

    def rivals(self, home: PlacedGraph, session: Session) -> tuple[Choice, ...]:
        """What may be quicker than a graph as it is placed, the likeliest first."""

    def why_not(self, home: PlacedGraph, values: Sequence[Any], rivals: int) -> str:
        """Why so many rivals are not compared at this call; empty if they may be."""

    def prepared(self, graphs: Sequence[PlacedGraph], values: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Entered while candidates run; what they change is put back at the end."""

    def warm(self, run: Run, values: Sequence[Any]) -> None:
        """Call a candidate until later calls are like one another; the values are left as they are."""

    def turn(self, run: Run, values: Sequence[Any]) -> float:
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
        """The placed graph; ``None`` if building it failed, or if there are plans for several ranges of sizes."""
        first = self.graphs[0] if len(self.graphs) == 1 else None
        return first if isinstance(first, PlacedGraph) else None

    @property
    def planned(self) -> Choice:
        """Its choice with the plan that it came to, so that nobody need search for that again."""
        placed = self.placed
        if placed is None:
            return self.choice
        plan, layout = portable(placed.plan, placed.graph), self.choice.layout or named_layout(placed.layout.record)
        return replace(self.choice, plan=plan, layout=layout, name=str(self.choice))

    @property
    def estimated_s(self) -> float:
        """Of its plan; 0 without one."""
        return 0.0 if self.placed is None else self.placed.plan.estimated_s


def ground_of(captured: Captured, session: Session) -> Ground | None:
    """Where a graph may be compared, as far as can be told before it is placed; ``None`` if it may not be."""
    search = session.config.search
    if session.config.objective != "latency":
        return None
    device = gpu_of(captured)
    names = tuple(node.name for node in captured.module.graph.find_nodes(op="placeholder"))
    if device is None:
        training = captured.phase != "inference"
        return ProcessorGround(search.first_call_s, names, training) if search.first_call_s > 0.0 else None
    # Elsewhere the first call may take no longer than it must.
    patient = session.records or search.mode == "measure"
    if not patient or search.first_call_gpu_s <= 0.0:
        return None
    return GpuGround(search.first_call_gpu_s, device, session.records, names)


def gpu_of(captured: Captured) -> int | None:
    """Number of the first GPU that inputs of a graph are on; ``None`` if there is none."""
    values = (node.meta.get("val") for node in captured.module.graph.find_nodes(op="placeholder"))
    found = (value.device for value in values if isinstance(value, torch.Tensor))
    return next((device.index or 0 for device in found if device.type == "cuda"), None)


class Comparison:
    """Compares a placed graph with its rivals; to be called once, with the values of the first call.

    Args:
        captured: the graph.
        session: where decisions are kept.
        ground: where they are compared.
        home: the graph as it is placed by estimates.
        choices: the rivals.
        build: makes a candidate, or raises.
        forget: told of the graphs of those that were slower.
    """

    def __init__(
        self,
        captured: Captured,
        session: Session,
        ground: Ground,
        home: Candidate,
        choices: Sequence[Choice],
        build: Callable[[Choice], Candidate],
        forget: Callable[[Sequence[Placed]], None],
    ) -> None:
        self._captured = captured
        self._session = session
        self._ground = ground
        self._home = home
        self._choices = choices
        self._build = build
        self._forget = forget

    def __call__(self, values: Sequence[Any]) -> Run:
        """The quickest candidate; the values are left as they are."""
        home = self._home.placed
        reason = "" if home is None else self._ground.why_not(home, values, len(self._choices))
        if reason:
            self._tell(f"not compared at the first call: {reason}")
        rivals, failed = ([], []) if reason else self._rivals()
        if not rivals and not failed:
            return self._home.run
        candidates = [*rivals, self._home]
        try:
            trials = (*self._compared(candidates, values), *failed)
            decision = decide(simplest_first(trials, None if home is None else home.plan))
        except torch.OutOfMemoryError as error:
            self._tell(f"not compared at the first call: {error}")
            decision = Decision(self._home.choice)
        winner = next(item for item in candidates if item.choice == decision.choice)
        if decision.trials:
            self._keep(winner, decision)
        for candidate in candidates:
            if candidate is not winner:
                self._forget(candidate.graphs)
        return winner.run

    def _compared(self, candidates: Sequence[Candidate], values: Sequence[Any]) -> tuple[Trial, ...]:
        graphs = [item for candidate in candidates for item in candidate.graphs if isinstance(item, PlacedGraph)]
        with self._ground.prepared(graphs, values):
            return compare(candidates, values, self._ground)

    def _keep(self, winner: Candidate, decision: Decision) -> None:
        self._remember(replace(decision, choice=winner.planned))
        shown = ", ".join(f"{trial.choice} {_shown(trial)}" for trial in decision.trials)
        self._tell(f"took {decision.choice} at the first call ({shown})")
        if winner.placed is not None:
            winner.placed.settle(decision)

    def _tell(self, detail: str) -> None:
        self._session.events.append(Event("tuning", self._captured.id, "", "", detail))

    def _rivals(self) -> tuple[list[Candidate], list[Trial]]:
        """Those that could be built in time, and those that could not be built."""
        begun = time.monotonic()
        built: list[Candidate] = []
        failed: list[Trial] = []
        for choice in self._choices:
            if time.monotonic() - begun > self._ground.compiling_s:
                break
            try:
                built.append(self._build(choice))
            except Exception as error:
                failed.append(_failed(choice, 0.0, error))
        return built, failed

    def _remember(self, decision: Decision) -> None:
        # What no other process could measure, no other process finds again; a graph without a text has no key.
        if tuner.why_untunable(self._session):
            return
        with contextlib.suppress(RegionTextError):
            remember(tuner.subject_of(self._captured, self._session), decision, self._session)


def compare(candidates: Sequence[Candidate], values: Sequence[Any], ground: Ground) -> tuple[Trial, ...]:
    """What candidates take, in turns; those that are far behind soon have no more.

    The last candidate is the one that runs if nobody is quicker: what it raises is raised.
    """
    rounds: dict[int, list[float]] = {}
    failed: dict[int, Trial] = {}
    for number, candidate in enumerate(candidates):
        try:
            ground.warm(candidate.run, values)
            rounds[number] = [ground.turn(candidate.run, values)]
        except Exception as error:
            if candidate is candidates[-1]:
                raise
            failed[number] = _failed(candidate.choice, candidate.estimated_s, error)
    take_turns(rounds, lambda number: ground.turn(candidates[number].run, values), ground.turns, ground.most_turns)
    return tuple(
        failed[number]
        if number in failed
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
    return trial.status if trial.median_s is None else f"{1e3 * trial.median_s:.3g} ms"


def remembered(subject: tuner.Subject, session: Session) -> Decision:
    """What the first call of this graph showed before; ``UNTUNED`` if nothing."""
    return Decision.read(session.database.decision(_key(subject, session)))


def remember(subject: tuner.Subject, decision: Decision, session: Session) -> None:
    """Keep what a first call showed; tuning does not take it for a decision of its own."""
    session.database.set_decision(
        _key(subject, session), decision.to_dict(), device=subject.device, fingerprints=session.fingerprints
    )


def _key(subject: tuner.Subject, session: Session) -> str:
    # What is quickest when replayed may not be when each kernel is launched, and the other way round.
    replayed = session.records and subject.device.startswith("cuda")
    return f"{subject.key}-first-call{'-replayed' if replayed else ''}"
