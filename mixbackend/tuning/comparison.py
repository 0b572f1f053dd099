"""A plan by estimates is held against the best single backends, at the first call of its graph.

Place: beside ``tuner``, asked by ``runtime.compiling`` for graphs that nothing was measured of.
Input: the graph as it was placed, a way to build it as another choice says, the values of the first call. Output: the
quickest of them; what was found is remembered under the key of the graph.
Method: estimates are right to about a tenth, so the plan that looks best among many is often not. The best single
backend on each pool of threads is compiled as well if it comes near, and all take turns in this process.
Invariants: only what runs on the processor, once per call and without effects is called more often than the user asked;
a backend whose rates were only assumed is not tried; the time is bounded (``search.first_call_s``), but for one
compilation. Candidates verify their regions like any other graph.
Non-goals: other mixtures, measuring apart from this process; that is what ``tuner`` does.
Units: seconds.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.contracts import OpTag, Plan, RegionTextError, TensorMeta
from mixbackend.processes import memory_bytes
from mixbackend.reporting import Event
from mixbackend.runtime.choice import Choice
from mixbackend.runtime.compiled_graphs import Placed
from mixbackend.runtime.first_call import Run
from mixbackend.runtime.identity import Captured
from mixbackend.runtime.placed import PlacedGraph
from mixbackend.runtime.session import Session
from mixbackend.tuning import tuner
from mixbackend.tuning.calls import LEAST_CALLS, timed_calls
from mixbackend.tuning.decision import MEASURED, Decision, Trial, decide

LEAST_S = 2e-4
"""Graphs that are estimated to take less are not worth a comparison."""
NEAR, NEAR_ELSEWHERE = 1.15, 1.7
"""Single backends within this factor of the plan, by estimates, may be quicker: on pools of threads that the plan uses,
and on others. A library with a pool of its own runs graphs its own way: estimates of all its ops err together."""
FAR_BEHIND = 1.3
"""Who is this many times slower than the quickest in the first turn has no second one."""
MOST_MEMORY = 1 / 8
"""Of the machine, for the inputs of a graph that is compared: each candidate packs its weights once more."""
TURNS = 3
TURN_S = 0.06
_ONCE = frozenset({OpTag.RANDOM, OpTag.MUTATES, OpTag.COLLECTIVE, OpTag.EFFECT})
"""Ops that may not run more often than the user's code says."""


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
    def estimated_s(self) -> float:
        """Of its plan; 0 without one."""
        return 0.0 if self.placed is None else self.placed.plan.estimated_s


def wanted(captured: Captured, session: Session) -> bool:
    """Whether a graph may be compared at all, as far as can be told before it is placed."""
    return captured.phase == "inference" and session.config.search.first_call_s > 0.0 and not session.records


def rivals(home: Candidate, session: Session) -> tuple[Choice, ...]:
    """Single backends that may be quicker than a graph as it is placed, at most one on each pool of threads.

    Args:
        home: the graph as it is placed.
        session: knows whose rates were measured.
    """
    if home.placed is None:
        return ()
    graph, plan = home.placed.graph, home.placed.plan
    if graph.dynamic or plan.estimated_s < LEAST_S or any(_ONCE & node.tags for node in graph.nodes):
        return ()
    metas = (meta for node in graph.nodes for meta in node.outputs)
    if any(isinstance(meta, TensorMeta) and meta.device.type != "cpu" for meta in metas):
        return ()
    probed, owners = session.probed(graph), {region.backend for region in plan.regions}
    pools = {backend.name: backend.traits().thread_pool for backend in session.backends}
    used = {pools[name] for name in owners}
    best: dict[str, tuple[float, str]] = {}
    for name, seconds in _alone(home.placed.layout.other, plan).items():
        # A single backend's own plan costs what it would cost alone.
        if name in probed and plan.estimated_s * (name in owners) < seconds:
            best[pools[name]] = min(best.get(pools[name], (math.inf, "")), (seconds, name))
    limits = {pool: plan.estimated_s * (NEAR if pool in used else NEAR_ELSEWHERE) for pool in best}
    near = sorted(found for pool, found in best.items() if found[0] <= limits[pool])
    return tuple(Choice(single=name) for _, name in near)


def _alone(*plans: Plan | None) -> dict[str, float]:
    """What each backend would take alone, in the layout that suits it."""
    pairs = [pair for plan in plans if plan is not None for pair in plan.single_backend_s]
    return {name: min(seconds for other, seconds in pairs if other == name) for name, _ in pairs}


class Comparison:
    """Compares a placed graph with its rivals; to be called once, with the values of the first call.

    Args:
        captured: the graph.
        session: where decisions are kept.
        home: the graph as it is placed by estimates.
        choices: the rivals.
        build: makes a candidate, or raises.
        forget: told of the graphs of those that were slower.
    """

    def __init__(
        self,
        captured: Captured,
        session: Session,
        home: Candidate,
        choices: Sequence[Choice],
        build: Callable[[Choice], Candidate],
        forget: Callable[[Sequence[Placed]], None],
    ) -> None:
        self._captured = captured
        self._session = session
        self._home = home
        self._choices = choices
        self._build = build
        self._forget = forget

    def __call__(self, values: Sequence[Any]) -> Run:
        """The quickest candidate; the values are left as they are."""
        rivals, failed = self._rivals() if fits(values) else ([], [])
        if not rivals and not failed:
            return self._home.run
        candidates = [*rivals, self._home]
        decision = decide((*compare(candidates, values), *failed))
        self._remember(decision)
        shown = ", ".join(f"{trial.choice} {_shown(trial)}" for trial in decision.trials)
        told = f"took {decision.choice} at the first call ({shown})"
        self._session.events.append(Event("tuning", self._captured.id, "", "", told))
        winner = next(item for item in candidates if item.choice == decision.choice)
        if winner.placed is not None:
            winner.placed.settle(decision)
        for candidate in candidates:
            if candidate is not winner:
                self._forget(candidate.graphs)
        return winner.run

    def _rivals(self) -> tuple[list[Candidate], list[Trial]]:
        """Those that could be built in time, and those that could not be built."""
        begun = time.monotonic()
        built: list[Candidate] = []
        failed: list[Trial] = []
        for choice in self._choices:
            if time.monotonic() - begun > self._session.config.search.first_call_s:
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


def fits(values: Sequence[Any]) -> bool:
    """Whether the machine has room for what every candidate makes of the weights, beside the weights themselves."""
    held = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
    return held <= MOST_MEMORY * (memory_bytes() or math.inf)


def compare(candidates: Sequence[Candidate], values: Sequence[Any]) -> tuple[Trial, ...]:
    """What candidates take, in turns; those far behind after their first turn have no second one.

    The last candidate is the one that runs if nobody is quicker: what it raises is raised.
    """
    rounds: dict[int, list[float]] = {}
    failed: dict[int, Trial] = {}
    for number, candidate in enumerate(candidates):
        try:
            candidate.run(list(values))  # binds constants, and verifies
            rounds[number] = [_turn(candidate.run, values)]
        except Exception as error:
            if candidate is candidates[-1]:
                raise
            failed[number] = _failed(candidate.choice, candidate.estimated_s, error)
    best = min(found[0] for found in rounds.values())
    near = [number for number, found in rounds.items() if found[0] <= FAR_BEHIND * best]
    for number in near * (TURNS - 1) if len(near) > 1 else ():
        rounds[number].append(_turn(candidates[number].run, values))
    return tuple(
        failed[number]
        if number in failed
        else Trial(candidate.choice, candidate.estimated_s, MEASURED, rounds_s=tuple(rounds[number]))
        for number, candidate in enumerate(candidates)
    )


def _turn(run: Run, values: Sequence[Any]) -> float:
    """Median seconds of a call, without the first one, which wakes the threads, where calls are short."""
    taken = timed_calls(lambda: run(list(values)), TURN_S)
    return statistics.median(taken[1:] if len(taken) > LEAST_CALLS else taken)


def _failed(choice: Choice, estimated_s: float, error: Exception) -> Trial:
    return Trial(choice, estimated_s, "failed", f"{type(error).__name__}: {error}")


def _shown(trial: Trial) -> str:
    return trial.status if trial.median_s is None else f"{1e3 * trial.median_s:.3g} ms"


def remembered(subject: tuner.Subject, session: Session) -> Decision:
    """What the first call of this graph showed before; ``UNTUNED`` if nothing."""
    return Decision.read(session.database.decision(_key(subject)))


def remember(subject: tuner.Subject, decision: Decision, session: Session) -> None:
    """Keep what a first call showed; tuning does not take it for a decision of its own."""
    session.database.set_decision(
        _key(subject), decision.to_dict(), device=subject.device, fingerprints=session.fingerprints
    )


def _key(subject: tuner.Subject) -> str:
    return f"{subject.key}-first-call"
