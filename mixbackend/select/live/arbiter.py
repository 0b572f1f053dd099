"""Arbiter: one entry of the process is tried at a time, the one with calls of the most seconds first.

Place: below ``selection``; a fact of the process. Input: the entry that asks, and what its calls took. Output: whether
it may try.
Method: an entry that wants to try asks at its calls. Of all entries that asked lately, the one that took most is let
in. It stays until it leaves, or has not been called for ``STALE_S``. An entry that is called no more keeps no other
waiting.
Invariants: safe for threads; an answer takes no more than a look at the entries that ask, a handful. Leaving takes no
lock: a collection of garbage may let go of an entry while its thread is in the middle of an answer.
Units: seconds, by the caller's clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mixbackend.backends.common import forks
from mixbackend.host.process_facts import process_fact

STALE_S = 5.0
"""An entry that has not asked for so long, nor for ``_STALE_CALLS`` of its calls, is called no more."""
_STALE_CALLS = 10


@dataclass(frozen=True, slots=True)
class _Asked:
    seconds: float
    until: float


class Arbiter:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._asked: dict[int, _Asked] = {}
        self._holder: int | None = None
        self._left: deque[int] = deque()

    def may(self, entry: int, seconds: float, now: float, call_s: float = 0.0) -> bool:
        """Whether an entry may try something now.

        Args:
            entry: number of the entry that asks.
            seconds: that its calls took.
            now: by a clock that all entries share.
            call_s: of one of its calls: an entry with long calls is not called often.
        """
        with self._lock:
            self._forget_those_that_left()
            self._asked[entry] = _Asked(seconds, now + max(STALE_S, _STALE_CALLS * call_s))
            self._asked = {asker: asked for asker, asked in self._asked.items() if asked.until >= now}
            if self._holder not in self._asked:
                self._holder = max(self._asked, key=lambda asker: self._asked[asker].seconds)
            return self._holder == entry

    def leave(self, entry: int) -> None:
        """An entry wants no more for now."""
        self._left.append(entry)

    def _forget_those_that_left(self) -> None:
        while self._left:
            entry = self._left.popleft()
            self._asked.pop(entry, None)
            if self._holder == entry:
                self._holder = None


@process_fact
def arbiter() -> Arbiter:
    """The one of this process."""
    return Arbiter()
