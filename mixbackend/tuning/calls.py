"""Seconds of single calls, for about a given time.

Place: below ``worker`` and ``comparison``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

LEAST_CALLS = 2
_STIRRED = 1 << 18
"""Numbers that torch's threads multiply between calls in training: enough for all of them to wake."""


def as_in_training(run: Callable[[], Any]) -> Callable[[], Any]:
    """A call as in a training step, where the other half and the optimizer follow, on torch's threads.

    A library whose own threads wait for work by spinning looks quicker where nobody else works in between.
    """
    numbers = torch.ones(_STIRRED)

    def call() -> None:
        run()
        numbers.mul_(1.0)

    return call


def timed_calls(run: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each call until they fill the time, ``LEAST_CALLS`` of them at least."""
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < LEAST_CALLS:
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return taken
