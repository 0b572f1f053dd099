"""Calls until no graph of the process tries other programs any more, so that what is timed is what runs from then on.

Place: between a first call and what is timed, in every worker that times. Input: a call. Output: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from mixbackend.benchmarks.one_model.protocol import LONGEST_SETTLE_S
from mixbackend.compile.mixture import all_mixtures


class Settling(Protocol):
    """What is waited for: a mixture."""

    def settled(self) -> bool:
        """Whether nothing is tried any more."""


def settle(
    call: Callable[[], Any],
    longest_s: float = LONGEST_SETTLE_S,
    mixtures: Callable[[], Iterable[Settling]] = all_mixtures,
) -> float | None:
    """Call until everything is settled; seconds that took, ``None`` if it was not settled after ``longest_s``."""
    begin = time.perf_counter()
    while not all(mixture.settled() for mixture in mixtures()):
        if time.perf_counter() - begin > longest_s:
            return None
        call()
    return time.perf_counter() - begin
