"""Race: candidates in processes of their own take turns; those that cannot win any more leave.

Place: below ``tuner``. Input: candidates with estimates, a way to start one, a budget; and what proposes further ones
when it is known what the regions of the first ones took. Output: one ``Trial`` each.
Method: candidates start in the order given, a few at once, for compiling keeps one core busy; one that is ready is
stopped by a signal. Then there are heats: a few turns show which are near the quickest, and what each region takes;
what others do to the machine makes that longer, never shorter, so the least counts. Plans that come of it are started
and have their heats, too. In the final, all that are left take turns in rotating order; every few rounds, those that
were slower than the leader in each of them leave, and it is over when all others are behind or as quick. A candidate
that takes a turn is alone, so that no waiting thread of another can spin. The first candidate never leaves: it is what
the others are compared with, and what is left when they fail.
Invariants: whatever a candidate does costs only itself. Nothing runs beside a turn. The budget is held to one turn.
Units: seconds.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mixbackend.host.processes import Answer
from mixbackend.plan.choice import Choice
from mixbackend.select.decision import MEASURED, NO_TIME, SLOWER, TIE, Trial, round_ratios

HEATS, ROUNDS = 3, 9
"""Turns before the final, and in it."""
TURN_S = 0.25
STARTING_SHARE = 0.75
"""Of the budget; what is left belongs to the turns."""
LONGEST_START = 1 / 3
"""Of the budget, for one candidate: a hang costs no more. Those that start first may take longer if all of them do."""
FAR_AWAY = 2.0
"""A candidate so many times slower than the quickest after its first turn has no more. First turns lie seconds apart,
within which a machine's speed may change by half."""
_WAIT_S = 0.1
_ROUNDS_BETWEEN_CUTS = 3


class Runner(Protocol):
    """A process at work on one candidate; see ``processes.Worker``."""

    def wait(self, timeout_s: float) -> bool: ...

    def answer(self, timeout_s: float) -> Answer: ...

    def tell(self, message: Mapping[str, Any], timeout_s: float) -> Answer: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a graph, and what it is estimated to take."""

    choice: Choice
    estimated_s: float


@dataclass(frozen=True, slots=True)
class Showing:
    """What a candidate showed in its heats.

    Attributes:
        candidate: the candidate.
        seconds: of a call in the quickest of its turns, their median.
        regions: what its regions took at least, as its process answered.
    """

    candidate: Candidate
    seconds: float
    regions: Sequence[Mapping[str, Any]]


@dataclass
class _Lane:
    """One candidate on its way."""

    candidate: Candidate
    on_trial: Callable[[Trial], None]
    runner: Runner | None = None
    regions: Sequence[Mapping[str, Any]] = ()
    status: str = ""
    detail: str = ""
    heats_s: list[float] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)
    least_s: float = math.inf

    @property
    def running(self) -> bool:
        return self.runner is not None

    def leave(self, status: str, detail: str) -> None:
        self.status, self.detail = status, detail
        if self.runner is not None:
            self.runner.close()
            self.runner = None
        self.on_trial(self.trial())

    def turn(self, longest_s: float, *, heat: bool) -> None:
        """One turn; before its first a candidate warms up, and in heats it tells what its regions take."""
        assert self.runner is not None
        self.runner.resume()
        first = heat and not self.heats_s
        answer = self.runner.tell({"seconds": TURN_S, "first": first, "regions": heat}, longest_s)
        if answer["status"] != "pass":
            self.leave(answer["status"], answer.get("detail", ""))
            return
        self.runner.pause()
        if heat:
            self.regions = _least(self.regions, answer.get("regions", ()))
        (self.heats_s if heat else self.rounds_s).append(answer["median_s"])
        self.least_s = min(self.least_s, answer["least_s"])

    def showing(self) -> Showing | None:
        return Showing(self.candidate, min(self.heats_s), self.regions) if self.heats_s else None

    def trial(self) -> Trial:
        status, rounds = self.status or MEASURED, tuple(self.rounds_s or self.heats_s)
        return Trial(self.candidate.choice, self.candidate.estimated_s, status, self.detail, rounds)


def _least(regions: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Of the same regions, timed twice, the shorter times; of a plan that was repaired meanwhile, the later ones."""
    if len(regions) != len(others):
        return others or regions
    pairs = zip(regions, others, strict=True)
    return [min(pair, key=lambda region: region["measured_s"]) for pair in pairs]


def race(
    candidates: Sequence[Candidate],
    start: Callable[[Choice], Runner],
    budget_s: float,
    show: Callable[[str, float], None] = lambda text, share: None,
    further: Callable[[Sequence[Showing]], Candidate | None] = lambda showings: None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    clock: Callable[[], float] = time.monotonic,
    at_once: int = 1,
) -> tuple[Trial, ...]:
    """Measure candidates against one another.

    Args:
        candidates: the first is the one to beat.
        start: begins a process for a choice.
        budget_s: after it no further turn begins.
        show: called with what is being done, and which share of the work is behind.
        further: asked for one more candidate, once all were started, until it has none.
        on_trial: called with each candidate that leaves, at once, so that a run that is interrupted need not try it
            again.
        clock: seconds.
        at_once: so many candidates compile side by side.
    """
    running = _Race(start, budget_s, show, on_trial, clock)
    try:
        for place in range(0, len(candidates), at_once):
            running.begin(candidates[place : place + at_once], len(candidates))
        running.heats(running.lanes)
        while running.left(STARTING_SHARE) > 0.0 and (found := further(_showings(running.lanes))) is not None:
            running.heats(running.begin((found,), len(running.lanes)))
        running.final()
        return tuple(lane.trial() for lane in running.lanes)
    finally:
        for lane in running.lanes:
            if lane.runner is not None:
                lane.runner.close()


class _Race:
    """The parts of a race; arguments as ``race`` takes them."""

    def __init__(
        self,
        start: Callable[[Choice], Runner],
        budget_s: float,
        show: Callable[[str, float], None],
        on_trial: Callable[[Trial], None],
        clock: Callable[[], float],
    ) -> None:
        self.lanes: list[_Lane] = []
        self._start_one = start
        self._budget_s = budget_s
        self._show = show
        self._on_trial = on_trial
        self._clock = clock
        self._begun = clock()

    def left(self, share: float = 1.0) -> float:
        """Seconds of this share of the budget."""
        return self._begun + share * self._budget_s - self._clock()

    def begin(self, group: Sequence[Candidate], expected: int) -> list[_Lane]:
        """Let some compile side by side, then each take its first turn; ``expected`` candidates there will be."""
        names = ", ".join(str(candidate.choice) for candidate in group)
        self._show(f"starting {names}", STARTING_SHARE * len(self.lanes) / (max(expected, len(self.lanes)) + 1))
        starting = [_Lane(candidate, self._on_trial) for candidate in group]
        self.lanes.extend(starting)
        longest_s = min(self.left(STARTING_SHARE), LONGEST_START * self._budget_s)
        if longest_s <= 0.0:
            for lane in starting:
                lane.leave(NO_TIME, "the budget was spent before its turn (search.budget_s)")
            return starting
        self._compile(starting, longest_s)
        for lane in starting:
            if lane.running:
                lane.turn(longest_s, heat=True)
        _cut(self.lanes, after_start=True)
        return starting

    def _compile(self, starting: Sequence[_Lane], longest_s: float) -> None:
        deadline = self._clock() + longest_s
        for lane in starting:
            lane.runner = self._start_one(lane.candidate.choice)
        if len(starting) > 1 and not any(lane.heats_s for lane in self.lanes):
            self._wait_for_one(starting)
        for lane in starting:
            assert lane.runner is not None
            answer = lane.runner.answer(max(deadline - self._clock(), 0.0))
            if answer["status"] == "pass":
                lane.runner.pause()
            else:
                lane.leave(answer["status"], answer.get("detail", ""))

    def _wait_for_one(self, starting: Sequence[_Lane]) -> None:
        """Until one is ready: if all of them take long, the machine is slow or the model is large, and none hangs."""
        for lane in itertools.cycle(starting):
            assert lane.runner is not None
            if lane.runner.wait(_WAIT_S) or self.left(STARTING_SHARE) <= 0.0:
                return

    def heats(self, lanes: Sequence[_Lane]) -> None:
        """The turns after the first that show what each takes."""
        for number in range(1, HEATS):
            for lane in _rotated([lane for lane in lanes if lane.running], number):
                if self.left(STARTING_SHARE) > 0.0:
                    lane.turn(self._longest(lane), heat=True)

    def final(self) -> None:
        """All that are left take turns, until one is left alone, or more turns would change nothing."""
        for number in range(ROUNDS):
            lanes = [lane for lane in self.lanes if lane.running]
            if self.left() <= 0.0 or len(lanes) < 2:
                return
            self._show(f"round {number + 1} of {ROUNDS}", STARTING_SHARE + (1.0 - STARTING_SHARE) * number / ROUNDS)
            for lane in _rotated(lanes, number):
                lane.turn(self._longest(lane), heat=False)
            if (number + 1) % _ROUNDS_BETWEEN_CUTS == 0:
                _cut(self.lanes, after_start=False)
                if _is_decided(self.lanes):
                    return

    def _longest(self, lane: _Lane) -> float:
        """Seconds within which a turn must have ended."""
        return max(self.left(), TURN_S) + 10.0 * lane.heats_s[0]


def _showings(lanes: Sequence[_Lane]) -> list[Showing]:
    return [showing for lane in lanes if (showing := lane.showing()) is not None]


def _cut(lanes: Sequence[_Lane], after_start: bool) -> None:
    """Let go of those that cannot win: far away at the start, slower in every round later.

    A single turn is judged by its quickest call: what else runs on the machine makes calls slower, never quicker.
    """
    running = [lane for lane in lanes if lane.running]
    if not running:
        return
    leader = min(running, key=lambda lane: lane.least_s if after_start else statistics.median(lane.rounds_s))
    for lane in running:
        if lane is lanes[0] or lane is leader:
            continue
        if lane.least_s > FAR_AWAY * leader.least_s if after_start else _is_behind(lane.rounds_s, leader.rounds_s):
            lane.leave(SLOWER, f"behind {leader.candidate.choice}")


def _is_decided(lanes: Sequence[_Lane]) -> bool:
    """Whether all that still run, the first too, are behind one of them, or as quick as it in half of the rounds."""
    running = [lane for lane in lanes if lane.running]
    if not running:
        return True
    leader = min(running, key=lambda lane: statistics.median(lane.rounds_s))
    near = [lane for lane in running if not _is_behind(lane.rounds_s, leader.rounds_s)]
    return all(
        statistics.median(abs(ratio - 1.0) for ratio in round_ratios(lane.rounds_s, leader.rounds_s)) <= TIE
        for lane in near
    )


def _is_behind(rounds: Sequence[float], leaders: Sequence[float]) -> bool:
    """Whether every round took longer than the leader's, by more than what is as quick."""
    return all(ratio > 1.0 + 2.0 * TIE for ratio in round_ratios(rounds, leaders))


def _rotated(lanes: Sequence[_Lane], number: int) -> list[_Lane]:
    place = number % len(lanes) if lanes else 0
    return [*lanes[place:], *lanes[:place]]
