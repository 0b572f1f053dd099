"""Pace: what calls of each program take now, beside what was estimated.

Place: below ``selection``. Input: seconds of calls, by the number of the program that ran them. Output: medians of the
latest; estimates where there are none.
Invariants: the caller has a lock.
Units: seconds.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping

from mixbackend.select.live.challengers import Challenger

_LATEST = 9
"""Calls of a program that say what it takes now."""


class Pace:
    """See the module's docstring.

    Args:
        estimates: of a call, by program.
        born: when the entry was made.
    """

    def __init__(self, estimates: Mapping[int, float], born: float) -> None:
        self._estimates, self._born = estimates, born
        self._latest: dict[int, deque[float]] = {}
        self._tries: dict[int, int] = {}
        self.first_s: float | None = None
        """From when the entry was made to the end of its first call."""
        self.best_s: float | None = None
        """To the end of the first call of the champion."""

    def begin(self, contender: int) -> int:
        """It runs a call; how many it ran before."""
        tries = self._tries.get(contender, 0)
        self._tries[contender] = tries + 1
        return tries

    def note(self, contender: int, call_s: float, now: float, champion: bool) -> None:
        """It has run a call that says what those that follow will take."""
        self._latest.setdefault(contender, deque(maxlen=_LATEST)).append(call_s)
        if self.first_s is None:
            self.first_s = now - self._born
        if self.best_s is None and champion:
            self.best_s = now - self._born

    def seen(self, contender: int) -> float | None:
        """What its calls take; ``None`` where none has told."""
        latest = self._latest.get(contender)
        return statistics.median(latest) if latest else None

    def seconds(self, contender: int) -> float:
        """What its calls take, or are estimated to."""
        seen = self.seen(contender)
        return self._estimates[contender] if seen is None else seen

    def bar_s(self, champion: int) -> float:
        """What a challenger's estimate is held against.

        Estimates err together: where the champion is faster than its own, so may all others be.
        """
        return max(self.seconds(champion), self._estimates[champion])

    def expected_s(self, contender: int, challenger: Challenger, champion: int, ratio: float | None) -> float:
        """What calls of a challenger are expected to take.

        Args:
            contender, challenger: its number, and the challenger itself.
            champion: number of the champion.
            ratio: what its first turn took beside the champion's; ``None`` before it ended.
        """
        seen = self.seen(contender)
        if seen is not None:
            return seen
        champion_s = self.seconds(champion)
        if ratio is not None:
            return ratio * champion_s
        # Where the champion takes longer than was estimated, so may all that share the machine with it.
        return max(1.0, champion_s / self._estimates[champion]) * challenger.most_s
