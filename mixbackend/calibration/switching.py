"""What it costs to go from torch's pool of threads to a backend's, and back.

Place: beside the rates of a backend; the cost model adds it to entering one of its regions.
Input: a backend whose pool is not torch's. Output: seconds, kept in the database for the backend's fingerprint.
Method: a product of matrices on the backend and one on torch, both on all threads: taken in turns under the thread
policy, as a plan that mixes pools runs them, over each repeated by itself, torch's without the policy, as a plan on
torch's pool alone runs it. What turns cost more is one pool falling asleep and the other waking, twice, and threads
that wake up on a core that is taken.
Why per region and not per tensor: the pools change once when a region begins and once when it ends, however many
tensors cross. Between regions of two foreign pools this counts one change too many: such neighbours are rare.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mixbackend.calibration.probing import compile_probes, undisturbed
from mixbackend.calibration.timing import time_calls
from mixbackend.contracts import TORCH_POOL, Backend, Probe
from mixbackend.runtime.threads import sharing

PRIOR_SWITCH_S = 1e-5
"""There and back, before anything was measured."""

_SIZE = 256
_REPEATS = 8
_SLICE_S = 0.06
_MOST_S = 2e-3
"""What looks dearer than this was another program."""

Report = Callable[[str, str], None]


def needs_switch(backend: Backend) -> bool:
    """Whether going to this backend changes the pool."""
    traits = backend.traits()
    return traits.thread_pool != TORCH_POOL and "cpu" in traits.device_types


def measure_switch(backend: Backend, compile_budget_s: float, report: Report) -> tuple[float, bool]:
    """Measure one backend.

    Returns:
        Seconds there and back, and whether the timings agree; the prior where they do not, and where the backend
        runs no product.
    """
    side = torch.full((_SIZE, _SIZE), 0.5)
    probe = Probe("matmul", "float32", torch.mm, lambda: [side, side], 2.0 * _SIZE**3)
    compiled, notes = compile_probes(backend, [probe], compile_budget_s)
    for note in notes:
        report(backend.name, f"switching pools: {note}")
    if not compiled:
        return PRIOR_SWITCH_S, True
    try:
        with undisturbed():
            return _time(compiled[0].call, backend.traits().thread_pool)
    except Exception as error:
        report(backend.name, f"switching pools: timing failed, {type(error).__name__}: {error}")
        return PRIOR_SWITCH_S, True


def _time(region: Callable[[], object], pool: str) -> tuple[float, bool]:
    value = torch.full((_SIZE, 2 * _SIZE), 0.5)
    weight = torch.full((2 * _SIZE, 2 * _SIZE), 0.5)
    out = torch.empty_like(value)
    own = lambda: torch.mm(value, weight, out=out)  # noqa: E731
    (apart,) = time_calls([_repeated([own])], _SLICE_S)
    with sharing.during([pool]):
        alone, turns = time_calls([_repeated([region]), _repeated([own, region])], _SLICE_S)
    if not all(timing.settled for timing in (apart, alone, turns)):
        return PRIOR_SWITCH_S, False
    more_s = (turns.seconds - apart.seconds - alone.seconds) / _REPEATS
    return min(max(more_s, 0.0), _MOST_S), True


def _repeated(calls: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """Long enough for the one change of pools at its beginning not to count."""

    def run() -> None:
        for _ in range(_REPEATS):
            for call in calls:
                call()

    return run


def switch_record(seconds: float, settled: bool) -> dict[str, Any]:
    """JSON form for the database."""
    return {"switch_s": seconds, "settled": settled, "at": time.time()}


def read_switch(record: Mapping[str, Any] | None) -> float | None:
    """Seconds from their JSON form; ``None`` if it does not fit."""
    seconds = None if record is None else record.get("switch_s")
    fits = isinstance(seconds, (int, float)) and math.isfinite(seconds) and 0.0 <= seconds <= _MOST_S
    return float(seconds) if fits and seconds is not None else None
