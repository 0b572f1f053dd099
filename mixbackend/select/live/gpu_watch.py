"""A watch for one GPU: marks in the queue of the stream that a call comes on.

Place: a ``watches.Watch``, made by ``compile.tried_entry``. Method: an event is recorded before a call and one after;
what lies between is what the GPU did for the call, and what it waited for the host meanwhile.
Invariants: nothing waits; in a call that the user records nothing is recorded of ours.
Units: seconds.
"""

from __future__ import annotations

import time

import torch

from mixbackend.select.live.watches import LapSeconds

_MILLI = 1e-3


class GpuLap:
    """One call; see ``watches.Lap``."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = int(stream.cuda_stream)
        self._queue, self._host_s, self._idle = stream, 0.0, stream.query()
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end: torch.cuda.Event | None = None
        self._begin.record(stream)
        self._begun = time.perf_counter()

    def stop(self) -> None:
        """See ``watches.Lap``."""
        self._host_s = time.perf_counter() - self._begun
        end = torch.cuda.Event(enable_timing=True)
        end.record(self._queue)
        self._end = end

    def seconds(self) -> LapSeconds | None:
        """See ``watches.Lap``."""
        if self._end is None or not self._end.query():
            return None
        return LapSeconds(_MILLI * self._begin.elapsed_time(self._end), self._host_s, self._idle)


class GpuWatch:
    """See the module's docstring.

    Args:
        device: number of the GPU.
    """

    def __init__(self, device: int) -> None:
        self._device = device

    def begin(self) -> GpuLap | None:
        """See ``watches.Watch``."""
        if torch.cuda.is_current_stream_capturing():
            return None
        return GpuLap(torch.cuda.current_stream(self._device))
