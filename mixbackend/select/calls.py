"""Seconds of single calls, for about a given time, as far apart as a program's own calls are.

Place: below ``worker`` and ``comparison_processor``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

LEAST_CALLS = 2
GAP_S = 5e-4
"""Between calls Python works for so long, as torch does for the guards of a model of some hundred weights."""
_STIRRED = 1 << 18
"""Numbers that torch's threads multiply between calls in training: enough for all of them to wake."""


def as_in_training(run: Callable[[], Any]) -> Callable[[], Any]:
    """A call as in a training step, where the other half and the optimizer follow, on torch's threads.

    A library with threads of its own that wait for work by spinning looks quicker where nothing else works in between.
    """
    numbers = torch.ones(_STIRRED)

    def call() -> None:
        run()
        numbers.mul_(1.0)

    return call


def timed_calls(run: Callable[[], Any], seconds: float, before: Callable[[], None] = lambda: None) -> list[float]:
    """Seconds of each call until so many have passed, ``LEAST_CALLS`` of them at least.

    What is called before each is not part of what it takes. Calls lie ``GAP_S`` apart: threads that wait for work by
    spinning stop after a while, and a library with such threads of its own looks quicker where one call follows right
    after the other.
    """
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < LEAST_CALLS:
        before()
        _work_in_python(GAP_S)
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return taken


def _work_in_python(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
