"""Seconds of single calls, for about a given time.

Place: below ``worker`` and ``comparison``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LEAST_CALLS = 2


def timed_calls(run: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each call until they fill the time, ``LEAST_CALLS`` of them at least."""
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < LEAST_CALLS:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return taken
