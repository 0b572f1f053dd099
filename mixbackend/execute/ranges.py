"""Ranges of torch's profiler around graphs and regions.

Place: what ``compile.program_entry`` calls while a profiler looks, instead of what it calls otherwise. Input: a run
function, a name. Output: the same function inside ``torch.profiler.record_function``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixbackend.execute.run_function import Run


def in_range(run: Callable[[list[Any]], Sequence[Any]], name: str) -> Run:
    """A run function inside a range of this name."""

    def ranged(inputs: list[Any]) -> Sequence[Any]:
        with torch.profiler.record_function(name):
            return run(inputs)

    return ranged
