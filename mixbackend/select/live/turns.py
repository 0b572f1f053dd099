"""Turns: which program the next call runs, champion or challenger, and which calls count.

Place: below ``selection``. Input: calls as they were. Output: the program of the next call; rounds, for
``paired_decision``.
Method: a turn is consecutive calls of one program, a round the turns A B B A. A turn's first call, which finds caches
and threads as the other program left them, is not counted; the others fill ``TURN_S`` or are one call. A call counts
if it ran the program in turn, its symbols agree within ``AGREE`` with those of its round, it came on the round's
stream, and no other call of ours ran beside it; the others are answered by the program in turn as well. Where a round
finds too few calls of like sizes twice, sums of ``SUMMED`` interleaved turns of each program count in place of
rounds, whatever their sizes.
Invariants: a value; ``after`` gives the next one. A round that cannot end is given up, never left with half its turns
counted.
Units: seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

TURN_S = 0.02
AGREE = 0.05
SUMMED = 10
"""Turns of each program in a sum."""
UNLIKE_CALLS = 40
"""A round that met so many calls which do not count, and more than do, is given up."""
UNLIKE_ROUNDS = 2
"""So many rounds in a row were given up for their sizes: sums take their place."""
HOPELESS_ROUNDS = 4
"""So many rounds in a row were given up for other reasons: calls always overlap, or come on several streams."""


class Side(Enum):
    """Which program runs a call."""

    CHAMPION = "champion"
    CHALLENGER = "challenger"


_ORDER = (Side.CHAMPION, Side.CHALLENGER, Side.CHALLENGER, Side.CHAMPION)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that has ended, and the next one has begun.

    Attributes:
        side: which program ran it.
        call_s: seconds of it.
        step_s: from its start to the next one's.
        symbols: its sizes.
        stream: where its work was queued; 0 on processors.
        alone: no other call of ours ran meanwhile.
    """

    side: Side
    call_s: float
    step_s: float
    symbols: tuple[int, ...] = ()
    stream: int = 0
    alone: bool = True


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a call of one program: its own, and from its start to the next one's; medians of a turn."""

    call_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """What a call of each took in one round: means over its turns."""

    champion: Times
    challenger: Times


@dataclass(frozen=True, slots=True)
class _Begun:
    """A round that has not ended.

    Attributes:
        turns: those that have ended.
        skipped: whether the present turn's first call is behind.
        counted, filled_s: calls of the present turn, and what they took.
        like: the first call that counted, which the others must be like.
        used: calls that counted, in all of its turns.
        unlike, disturbed: calls that did not count for their sizes, or for what ran beside them.
    """

    turns: tuple[Times, ...] = ()
    skipped: bool = False
    counted: tuple[Call, ...] = ()
    filled_s: float = 0.0
    like: Call | None = None
    used: int = 0
    unlike: int = 0
    disturbed: int = 0


@dataclass(frozen=True, slots=True)
class Turns:
    """See the module's docstring.

    Attributes:
        rounds: that ended.
        summing: whether sums of turns count, whatever the calls' sizes.
        given_up_unlike, given_up_disturbed: rounds in a row, by why.
        now: the round that has not ended.
    """

    rounds: tuple[Round, ...] = ()
    summing: bool = False
    given_up_unlike: int = 0
    given_up_disturbed: int = 0
    now: _Begun = field(default_factory=_Begun)

    @property
    def side(self) -> Side:
        """Which program runs the next call."""
        return _ORDER[len(self.now.turns) % len(_ORDER)]

    @property
    def between_rounds(self) -> bool:
        """Whether the next call begins a round."""
        return self.now == _Begun()

    @property
    def turn_begins(self) -> bool:
        """Whether the next call is the first of a turn that is not the round's first."""
        return bool(self.now.turns) and not self.now.skipped

    @property
    def ratio(self) -> float | None:
        """What the challenger's first turn of this round took beside the champion's; ``None`` before it ended."""
        if len(self.now.turns) < 2:
            return None
        champion, challenger, *_ = self.now.turns
        return challenger.call_s / champion.call_s

    @property
    def hopeless(self) -> bool:
        """Whether calls never count."""
        return self.given_up_disturbed >= HOPELESS_ROUNDS

    def after(self, call: Call) -> Turns:
        """What follows a call."""
        now = self.now
        if call.side is not self.side or not call.alone or not self._on_stream(call):
            return self._gone_on(replace(now, disturbed=now.disturbed + 1))
        if not now.skipped:
            return replace(self, now=replace(now, skipped=True))
        if now.like is not None and not self.summing and not agree(call.symbols, now.like.symbols):
            return self._gone_on(replace(now, unlike=now.unlike + 1))
        filled_s = now.filled_s + call.call_s
        now = replace(now, counted=(*now.counted, call), filled_s=filled_s, like=now.like or call, used=now.used + 1)
        if not self.summing and filled_s < TURN_S:
            return replace(self, now=now)
        call_s = statistics.median(item.call_s for item in now.counted)
        step_s = statistics.median(item.step_s for item in now.counted)
        return self._turn_ended(now, Times(call_s, step_s))

    def with_turn(self, times: Times) -> Turns:
        """What follows a whole turn of the side in turn."""
        return self._turn_ended(self.now, times)

    def given_up(self) -> Turns:
        """The present round is nothing: what was to run it may not."""
        return replace(self, now=_Begun())

    def _on_stream(self, call: Call) -> bool:
        return self.now.like is None or call.stream == self.now.like.stream

    def _gone_on(self, now: _Begun) -> Turns:
        if now.unlike + now.disturbed < max(UNLIKE_CALLS, now.used):
            return replace(self, now=now)
        if now.disturbed > now.unlike:
            return replace(self, now=_Begun(), given_up_disturbed=self.given_up_disturbed + 1)
        unlike = self.given_up_unlike + 1
        return replace(self, now=_Begun(), given_up_unlike=unlike, summing=unlike >= UNLIKE_ROUNDS)

    def _turn_ended(self, now: _Begun, turn: Times) -> Turns:
        turns = (*now.turns, turn)
        if len(turns) < (2 * SUMMED if self.summing else len(_ORDER)):
            return replace(self, now=replace(now, turns=turns, skipped=False, counted=(), filled_s=0.0))
        found = Round(_of(Side.CHAMPION, turns), _of(Side.CHALLENGER, turns))
        return replace(self, rounds=(*self.rounds, found), now=_Begun(), given_up_unlike=0, given_up_disturbed=0)


def agree(symbols: Sequence[int], others: Sequence[int]) -> bool:
    """Whether sizes are alike, one by one."""
    return len(symbols) == len(others) and all(
        abs(one - other) <= AGREE * max(abs(one), abs(other)) for one, other in zip(symbols, others, strict=True)
    )


def _of(side: Side, turns: Sequence[Times]) -> Times:
    mine = [turn for place, turn in enumerate(turns) if _ORDER[place % len(_ORDER)] is side]
    return Times(statistics.fmean(turn.call_s for turn in mine), statistics.fmean(turn.step_s for turn in mine))
