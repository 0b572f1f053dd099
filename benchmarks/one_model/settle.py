"""A warm-up of every mixture of the process, so that what is timed is what runs from then on.

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

    def warm_up(self, call: Callable[[], Any], longest_s: float) -> bool:
        """Call until that is so, or the time is over, and stop trying."""


def settle(
    call: Callable[[], Any],
    longest_s: float = LONGEST_SETTLE_S,
    mixtures: Callable[[], Iterable[Settling]] = all_mixtures,
) -> float | None:
    """Call until everything was tried; seconds that took, ``None`` if it was not after ``longest_s``."""
    begin, done = time.perf_counter(), True
    for mixture in mixtures():
        if not mixture.settled():
            done = mixture.warm_up(call, longest_s - (time.perf_counter() - begin)) and done
    return time.perf_counter() - begin if done else None
