"""Overlaps: whether a call ran alone, of all calls of ours in the process.

Place: below ``selection``; a fact of the process. Input: which call begins or ends. Output: for each call, whether
another one ran during any part of it.
Invariants: safe for threads.
"""

from __future__ import annotations

from mixbackend.backends.common import forks
from mixbackend.host.process_facts import process_fact


class Overlaps:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._running = 0
        self._begun = 0
        self._disturbed_until = 0
        forks.follow(self)

    def after_fork(self) -> None:
        """In the child of a fork: calls of other threads go on elsewhere."""
        self._running = 0

    def begin(self) -> int:
        """A call begins; its number is to be told at its end."""
        with self._lock:
            self._begun += 1
            if self._running:
                self._disturbed_until = self._begun
            self._running += 1
            return self._begun

    def end(self, number: int) -> bool:
        """A call has ended: whether it was alone."""
        with self._lock:
            self._running = max(0, self._running - 1)
            return self._begun == number and self._disturbed_until < number


@process_fact
def overlaps() -> Overlaps:
    """The one of this process."""
    return Overlaps()
