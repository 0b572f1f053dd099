"""Whether this machine is quiet enough to measure rates on it.

Place: asked by ``mixbackend calibrate`` before it begins. Output: why not, in words.
Method: the load of the last minute; and the same short loop of Python on one core, and the same product of matrices on
all threads, again and again for half a second: on a quiet machine each takes as long as before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from mixbackend.host.load import machine_is_busy

_SECONDS = 0.5
_SIZE, _TURNS = 256, 20000
_LARGEST_SPREAD = 1.25
"""Of the median over the lower decile."""


def why_busy() -> str:
    """Why measuring would be disturbed; empty if it would not."""
    if machine_is_busy():
        return "more programs want to run than there are cores, by the load of the last minute"
    value = torch.full((_SIZE, _SIZE), 0.01)
    out = torch.empty_like(value)
    for name, call in (
        ("a loop on one core", _turns),
        ("a product on all threads", lambda: torch.mm(value, value, out=out)),
    ):
        spread = _spread(call)
        if spread > _LARGEST_SPREAD:
            return f"{name} takes {spread:.2f} times as long at one time as at another"
    return ""


def _turns() -> None:
    for _ in range(_TURNS):
        pass


def _spread(call: Callable[[], object]) -> float:
    call()
    samples: list[float] = []
    end = time.perf_counter() + _SECONDS
    while not samples or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    low = sorted(samples)[len(samples) // 10]
    return statistics.median(samples) / max(low, 1e-9)
