"""A race: candidates in processes of their own take turns; those that cannot win any more leave.

Place: below ``tuner``. Input: candidates with estimates, a way to start one, a budget; and who thinks of further ones
when it is known what the regions of the first ones took. Output: one ``Trial`` each.
Method: candidates start one after the other, in the order given, and are stopped by a signal while another is at work,
so that their waiting threads cannot spin. After its first turn, one whose quickest call is far behind the
best leaves. The rest takes turns in
rotating order; every few rounds, those whose best turn is worse than the leader's worst leave. The first candidate
never does: it is what the others are compared with, and what is left when they fail.
Invariants: whatever a candidate does costs only itself. The budget is held to one turn.
Units: seconds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mixbackend.processes import Answer
from mixbackend.runtime.choice import Choice
from mixbackend.tuning.decision import MEASURED, NO_TIME, SLOWER, Trial

ROUNDS = 9
TURN_S = 0.25
FAR_BEHIND = 1.3
"""One that is this many times slower than the best in its first turn does not come back."""
STARTING_SHARE = 0.75
"""Of the budget; what is left belongs to the turns."""
LONGEST_START = 1 / 3
"""Of the budget, for one candidate: a hang costs no more."""
_ROUNDS_BETWEEN_CUTS = 3


class Runner(Protocol):
    """A process at work on one candidate; see ``processes.Worker``."""

    def answer(self, timeout_s: float) -> Answer: ...

    def tell(self, message: Mapping[str, Any], timeout_s: float) -> Answer: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Entrant:
    """A candidate and what it is expected to take."""

    choice: Choice
    estimated_s: float


@dataclass(frozen=True, slots=True)
class Showing:
    """What a candidate showed in its first turn.

    Attributes:
        entrant: the candidate.
        seconds: median of a call.
        regions: what its regions took, as its process told it.
    """

    entrant: Entrant
    seconds: float
    regions: Sequence[Mapping[str, Any]]


@dataclass
class _Lane:
    """One candidate on its way."""

    entrant: Entrant
    told: Callable[[Trial], None]
    runner: Runner | None = None
    regions: Sequence[Mapping[str, Any]] = ()
    status: str = ""
    detail: str = ""
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
        self.told(self.trial())

    def showing(self) -> Showing | None:
        return Showing(self.entrant, self.rounds_s[0], self.regions) if self.rounds_s else None

    def trial(self) -> Trial:
        status = self.status or MEASURED
        return Trial(self.entrant.choice, self.entrant.estimated_s, status, self.detail, tuple(self.rounds_s))


def race(
    entrants: Sequence[Entrant],
    start: Callable[[Choice], Runner],
    budget_s: float,
    show: Callable[[str, float], None] = lambda text, share: None,
    further: Callable[[Sequence[Showing]], Entrant | None] = lambda showings: None,
    told: Callable[[Trial], None] = lambda trial: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Trial, ...]:
    """Measure candidates against one another.

    Args:
        entrants: the first is the one to beat.
        start: begins a process for a choice.
        budget_s: after it no further turn begins.
        show: told what is being done, and which share of the work is behind.
        further: asked for one more candidate, once all were started, until it has none.
        told: of each candidate that leaves, at once, so that a run that is interrupted need not try it again.
        clock: seconds.
    """
    begun = clock()
    lanes: list[_Lane] = []

    def left(share: float = 1.0) -> float:
        return begun + share * budget_s - clock()

    try:
        for entrant in _all(entrants, further, lanes, lambda: left(STARTING_SHARE) > 0.0):
            show(f"starting {entrant.choice}", STARTING_SHARE * len(lanes) / (max(len(entrants), len(lanes)) + 1))
            lanes.append(lane := _Lane(entrant, told))
            remaining = left(STARTING_SHARE)
            if remaining <= 0.0:
                lane.leave(NO_TIME, "the budget was spent before its turn (search.budget_s)")
                continue
            _start(lane, start, min(remaining, LONGEST_START * budget_s))
            _cut(lanes, after_start=True)
        for number in range(1, ROUNDS):
            running = [lane for lane in lanes if lane.running]
            if left() <= 0.0 or len(running) < 2:
                break
            show(f"round {number + 1} of {ROUNDS}", STARTING_SHARE + (1.0 - STARTING_SHARE) * number / ROUNDS)
            for lane in _rotated(running, number):
                _turn(lane, max(left(), TURN_S) + 10.0 * lane.rounds_s[0])
            if number % _ROUNDS_BETWEEN_CUTS == 0:
                _cut(lanes, after_start=False)
        return tuple(lane.trial() for lane in lanes)
    finally:
        for lane in lanes:
            if lane.runner is not None:
                lane.runner.close()


def _all(
    entrants: Sequence[Entrant],
    further: Callable[[Sequence[Showing]], Entrant | None],
    lanes: Sequence[_Lane],
    in_time: Callable[[], bool],
) -> Iterator[Entrant]:
    """The candidates, then further ones that what was seen until then suggests."""
    yield from entrants
    while in_time():
        found = further([showing for lane in lanes if (showing := lane.showing()) is not None])
        if found is None:
            return
        yield found


def _start(lane: _Lane, start: Callable[[Choice], Runner], longest_s: float) -> None:
    lane.runner = start(lane.entrant.choice)
    answer = lane.runner.answer(longest_s)
    if answer["status"] != "pass":
        lane.leave(answer["status"], answer.get("detail", ""))
        return
    lane.regions = answer.get("regions", ())
    _turn(lane, longest_s, paused=False)


def _turn(lane: _Lane, longest_s: float, paused: bool = True) -> None:
    assert lane.runner is not None
    if paused:
        lane.runner.resume()
    answer = lane.runner.tell({"seconds": TURN_S}, longest_s)
    if answer["status"] != "pass":
        lane.leave(answer["status"], answer.get("detail", ""))
        return
    lane.runner.pause()
    lane.rounds_s.append(answer["median_s"])
    lane.least_s = min(lane.least_s, answer["least_s"])


def _cut(lanes: Sequence[_Lane], after_start: bool) -> None:
    """Let go of those that cannot win: far behind at the start, clearly behind later.

    A single turn is judged by its quickest call: what else runs on the machine makes calls slower, never quicker.
    """
    running = [lane for lane in lanes if lane.running]
    if not running:
        return
    leader = min(running, key=lambda lane: lane.least_s if after_start else statistics.median(lane.rounds_s))
    for lane in running:
        if lane is lanes[0]:
            continue
        behind = (
            lane.least_s > FAR_BEHIND * leader.least_s if after_start else min(lane.rounds_s) > max(leader.rounds_s)
        )
        if behind and lane is not leader:
            lane.leave(SLOWER, f"behind {leader.entrant.choice}")


def _rotated(lanes: Sequence[_Lane], number: int) -> list[_Lane]:
    place = number % len(lanes)
    return [*lanes[place:], *lanes[:place]]
