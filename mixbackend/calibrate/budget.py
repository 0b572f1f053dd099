"""The time in which an accelerator's backends are measured, shared fairly.

Place: below ``model``. Compilers for accelerators take seconds for each probe, and the first one must not take the time
of all others.
"""

from __future__ import annotations

import time

from mixbackend.calibrate.timing import Clock
from mixbackend.contracts import Backend

PROBES_SHARE = 0.6
"""Of a backend's time, for compiling its probes; the rest is for running them, and for blocks of models."""


class TimeLeft:
    """Each backend gets an equal part of what is left when its turn comes.

    Args:
        seconds: for all of them.
        backends: how many are to be measured.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, backends: int, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._backends = backends

    def take(self) -> Part:
        """The next backend's part."""
        seconds = max(self._end - self._clock(), 0.0) / max(self._backends, 1)
        self._backends -= 1
        return Part(seconds, self._clock)


class Part:
    """One backend's time, from now on.

    Args:
        seconds: of it.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self.probes_s = PROBES_SHARE * seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left of it."""
        return self._end - self._clock()


def turn(backend: Backend) -> tuple[bool, bool]:
    """The reference comes first: it fills in where others are fitted to blocks that they do not run alone. Compilers
    that trace regions anew, the slow ones, come last, and get what the others left."""
    traits = backend.traits()
    return not traits.reference, traits.decomposition != "none"
