"""Timed calls: what the first calls of a region took, for reports.

Place: around the run functions of ``execute.region_executor``. Input: a region's calls. Output: their median in
seconds; on a GPU a call is over when all work that was queued is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from mixbackend.contracts import Region, TensorMeta
from mixbackend.execute.run_function import Run

TIMED_CALLS = 5
"""So many calls of a region are timed."""


def timed(run: Run, times: TimedCalls) -> Run:
    """The same run function; its calls are timed."""

    def timing(inputs: list[Any]) -> Sequence[Any]:
        start = times.now()
        outputs = run(inputs)
        times.add_since(start)
        return outputs

    return timing


class TimedCalls:
    """See the module's docstring.

    Args:
        region: the region that is called.
    """

    def __init__(self, region: Region) -> None:
        metas = [*(item.meta for item in region.inputs), *(item.meta for item in region.outputs)]
        self._queued = any(isinstance(meta, TensorMeta) and meta.device.type == "cuda" for meta in metas)
        self._seconds: list[float] = []

    def now(self) -> float:
        """Seconds of a clock, when all work that was queued before is done."""
        if self._queued:
            torch.cuda.current_stream().synchronize()
        return time.perf_counter()

    def add_since(self, start: float) -> None:
        """A call is over that began then; further ones than are wanted do not count."""
        if not self.done:
            self._seconds.append(self.now() - start)

    @property
    def done(self) -> bool:
        """Whether enough calls were timed."""
        return len(self._seconds) >= TIMED_CALLS

    @property
    def median_s(self) -> float | None:
        """Of the calls so far, ``None`` before the first."""
        return median(self._seconds) if self._seconds else None

    def begin_again(self) -> None:
        """Forget what was timed."""
        self._seconds.clear()
