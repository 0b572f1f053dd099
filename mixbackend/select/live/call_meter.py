"""Call meter: calls that are part of no comparison, counted, and when to look at what comes next.

Place: below ``live_calls``. Input: what calls took by the host's clock; where calls only queue their work, laps of some
of them. Output: how many calls came, and their seconds.
Method: on a processor all seconds are added up. Elsewhere one call between two looks is timed, and counts for the
others.
Invariants: counting takes no lock; the caller has one.
Units: seconds.
"""

from __future__ import annotations

from mixbackend.select.live.watches import Lap, Watch

LOOK_EVERY_S = 0.02


class CallMeter:
    """See the module's docstring.

    Args:
        watch: for calls that only queue their work.
    """

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._lap: Lap | None = None
        self._calls, self._seconds, self._look_at = 0, 0.0, 1

    def lap(self) -> Lap | None:
        """For a call that begins; ``None`` for most."""
        if self._watch is None or self._lap is not None:
            return None
        self._lap = self._watch.begin()
        return self._lap

    def count(self, host_s: float) -> bool:
        """A call has returned after so long; whether a look is due."""
        self._calls += 1
        self._seconds += host_s
        return self._calls >= self._look_at

    def taken(self) -> tuple[int, float] | None:
        """Calls since this was asked with success, and their seconds; ``None`` while they are not known."""
        calls, host_s = self._calls, self._seconds
        every = max(1, int(LOOK_EVERY_S * calls / max(host_s, 1e-9)))
        self._look_at = calls + every
        if self._watch is None:
            seconds = host_s
        else:
            lap = None if self._lap is None else self._lap.seconds()
            if lap is None:
                return None
            self._lap, seconds = None, calls * lap.device_s
        self._calls, self._seconds, self._look_at = 0, 0.0, every
        return calls, seconds
