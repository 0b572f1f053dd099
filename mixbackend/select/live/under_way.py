"""Calls under way: those that have returned, and which the device may not be done with.

Place: below ``selection``. Input: calls as they return, each with its lap. Output: those that are done, in their order.
Invariants: the caller has a lock; nothing waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mixbackend.select.live.watches import Lap, LapSeconds

T = TypeVar("T")


class UnderWay(Generic[T]):
    """See the module's docstring; what is known of a call beside its lap is the caller's."""

    def __init__(self) -> None:
        self._calls: deque[tuple[T, Lap]] = deque()

    def add(self, call: T, lap: Lap) -> None:
        """A call has returned."""
        self._calls.append((call, lap))

    def done(self) -> Iterator[tuple[T, LapSeconds]]:
        """Calls that the device is done with; each is told once."""
        while self._calls and (seconds := self._calls[0][1].seconds()) is not None:
            yield self._calls.popleft()[0], seconds

    def count(self, such: Callable[[T], bool]) -> int:
        """How many there are of a kind."""
        return sum(1 for call, _ in self._calls if such(call))

    def clear(self) -> None:
        """Forget all calls: nothing asks for them any more."""
        self._calls.clear()
