"""Step clock: seconds per step of a placement, for ``mixbackend bench partitioner`` and debugging.

Place: handed to ``place`` where they are wanted. Not part of the plan: plans are equal for equal input.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

LARGE = 2000
"""Nodes from which on a graph is worth pausing the garbage collector for."""


class StepClock:
    """Collects wall-clock seconds by the name of a step, in order of first use, and how often each was gone through."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.times: Counter[str] = Counter()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of a block to a step."""
        self.times[name] += 1
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@contextmanager
def collection_paused(nodes: int) -> Iterator[None]:
    """Pause the cyclic garbage collector while a large graph is placed.

    A placement makes millions of small values and no cycles; walking them again and again nearly doubles its time.
    Memory is freed by reference counts as ever. Small graphs are left alone.
    """
    if nodes < LARGE or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
