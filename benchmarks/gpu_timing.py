"""Calls on a GPU timed by the GPU's own marks, in turns.

Place: below ``gpu_worker`` and ``tensorrt_models``.
Why blocks: a mark costs about what a small kernel does, so many calls share two marks. Why turns: a machine's speed
drifts; what is compared must have run under the same drift. Why a lock: rows may compile side by side in processes of
their own, and are timed one at a time, while no process compiles.
Units: milliseconds of one call.
"""

from __future__ import annotations

import contextlib
import fcntl
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mixbackend.benchmarks.one_model.timing import round_order
from mixbackend.calibrate.timing import seconds_by_marks

TURNS = 12
_BLOCK_MS = 25.0


Call = Callable[[], Any]
Watch = Callable[[Call, int], float]
"""Seconds that so many calls take together."""


def timed_in_turns(
    calls: Mapping[str, Call], turns: int = TURNS, watch: Watch = seconds_by_marks
) -> dict[str, list[float]]:
    """A sample per turn of each call; a turn lasts about 25 ms, three calls at least."""

    def block(call: Call, count: int) -> float:
        return 1e3 * watch(call, count) / count

    lengths = {way: max(3, int(_BLOCK_MS / max(block(call, 3), 1e-3))) for way, call in calls.items()}
    samples: dict[str, list[float]] = {way: [] for way in calls}
    for turn in range(turns):
        for way in round_order(list(calls), turn):
            samples[way].append(block(calls[way], lengths[way]))
    return samples


def quartiles(samples: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles around it, as records of rows have them."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return {"ms": round(middle, 4), "low_ms": round(low, 4), "high_ms": round(high, 4)}


@contextlib.contextmanager
def beside_others(lock: Path) -> Iterator[None]:
    """While this process compiles: others may, but none is timed."""
    with _held(lock, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """While this process is timed: entered when no process compiles any more, and until then none begins to."""
    with _held(lock, fcntl.LOCK_EX):
        yield


@contextlib.contextmanager
def _held(path: Path, kind: int) -> Iterator[None]:
    # Closing the file releases it, also if the process is killed.
    with path.open("a") as file:
        fcntl.flock(file, kind)
        yield
