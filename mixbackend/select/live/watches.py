"""Watches: what calls take that have only queued their work when they return, as on a GPU.

Place: below ``selection`` and ``live_calls``; ``gpu_watch`` is one. A processor's calls need none: they end when they
return. Input: the moments when a call begins and ends. Output: ``Lap``, which knows its seconds once the device has
passed both marks.
Invariants: nothing waits for the device.
Units: seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LapSeconds:
    """Of one call.

    Attributes:
        device_s: between its marks.
        host_s: until it returned.
        idle: whether the device had nothing to do when it began, so that the host's seconds are the user's too.
    """

    device_s: float
    host_s: float
    idle: bool

    @property
    def step_s(self) -> float:
        """What must not become longer beside ``device_s``: the host's seconds, where the device waited for them."""
        return self.host_s if self.idle else self.device_s


class Lap(Protocol):
    """One call."""

    @property
    def stream(self) -> int:
        """Where its work is queued."""
        ...

    def stop(self) -> None:
        """The call has returned."""
        ...

    def seconds(self) -> LapSeconds | None:
        """What it took; ``None`` while the device is not done with it."""
        ...


class Watch(Protocol):
    """Times calls of one device."""

    def begin(self) -> Lap | None:
        """A call begins; ``None`` where it cannot be timed, since the user records it."""
        ...
