"""Calls until no graph of the process tries other programs any more, so that what is timed is what runs from then on.

Place: between a first call and what is timed, in every worker that times. Input: a call. Output: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mixbackend.compile.mixture import all_mixtures

LONGEST_S = 600.0


def settle(call: Callable[[], Any], longest_s: float = LONGEST_S) -> float | None:
    """Call until everything is settled; seconds that took, ``None`` if it was not settled after ``longest_s``."""
    begin = time.perf_counter()
    while not all(mixture.settled() for mixture in all_mixtures()):
        if time.perf_counter() - begin > longest_s:
            return None
        call()
    return time.perf_counter() - begin
