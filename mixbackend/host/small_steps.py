"""Work of this process itself, in steps so small that they fit between two calls.

Place: filled with what is to be loaded once it was built behind; drained by whoever ends a call.
Input: generators, each of which does a little before every ``yield``. Output: their effects.
Invariants: draining takes two milliseconds, and no step is begun that is expected to take longer than what is left; the
first is begun in any case, so that a step that is too long costs one call once and is counted. One thread drains at a
time, others pass by. A generator that raises is dropped, and told.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

from mixbackend.backends.common import forks

LONGEST_S = 0.002

logger = logging.getLogger("mixbackend")

Steps = Generator[None, None, None]


@dataclass
class _Work:
    name: str
    steps: Steps
    longest_s: float = 0.0


class SmallSteps:
    """See the module's docstring.

    Args:
        told: takes the name of work that raised, and the error; default, a warning in the log.
        clock: seconds.
    """

    def __init__(
        self,
        told: Callable[[str, Exception], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._told = told or _log
        self._clock = clock
        self._waiting: deque[_Work] = deque()
        self._draining = forks.long_lock()
        self.overlong = 0
        """How many steps took longer than a draining may."""
        self.longest_s = 0.0
        """Of all steps."""

    def add(self, name: str, steps: Steps) -> None:
        """Do it later, step by step, after what is there already."""
        self._waiting.append(_Work(name, steps))

    def drain(self, longest_s: float = LONGEST_S) -> bool:
        """Do what fits into so many seconds; whether something is left."""
        if not self._waiting or not self._draining.acquire(blocking=False):
            return bool(self._waiting)
        try:
            begin = now = self._clock()
            while self._waiting and (now == begin or now - begin + self._waiting[0].longest_s < longest_s):
                self._step(self._waiting[0])
                now = self._clock()
        finally:
            self._draining.release()
        return bool(self._waiting)

    def forget(self) -> None:
        """Drop everything: in a fork, what was waiting belongs to the parent."""
        self._waiting.clear()

    def _step(self, work: _Work) -> None:
        begin = self._clock()
        try:
            next(work.steps)
        except StopIteration:
            self._waiting.popleft()
        except Exception as error:
            self._waiting.popleft()
            self._told(work.name, error)
        took = self._clock() - begin
        work.longest_s = max(work.longest_s, took)
        self.longest_s = max(self.longest_s, took)
        self.overlong += took > LONGEST_S


def _log(name: str, error: Exception) -> None:
    logger.warning("%s was given up: %s: %s", name, type(error).__name__, error)
