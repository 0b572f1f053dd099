"""Seconds of kernels on the GPU that is here: what ``tuning`` measures with.

Place: made by the backend where candidates are measured. Input: a ``Trial``. Output: seconds of one launch per way.
Ways take turns, and of each the median counts: what disturbs the GPU disturbs all of them. Memory is the trial's own;
where it fits into the second cache it stays there, for all ways alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from mixbackend.backends.codegen.call_table import CallTable, TabledCall
from mixbackend.backends.codegen.targets.triton.compiler import WORKERS, Architecture, Binary, compile_texts
from mixbackend.backends.codegen.targets.triton.launcher import Kernels, make_launch
from mixbackend.backends.codegen.targets.triton.tuning import Clock, Trial
from mixbackend.contracts import CodegenError

_TURNS = 7
_LAUNCHES = 10
_SHARE_OF_FREE = 0.25
"""Of the GPU's free memory that a trial may take."""

Launch = Callable[[], None]


def device_clock(architecture: Callable[[], Architecture]) -> Clock:
    """A clock on the current GPU.

    Args:
        architecture: of its code.
    """

    def clock(trial: Trial) -> list[float]:
        nothing = [float("inf")] * len(trial.ways)
        if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
            return nothing
        size = sum(dtype.itemsize * count for dtype, count in trial.memory)
        if size > _SHARE_OF_FREE * torch.cuda.mem_get_info()[0]:
            return nothing
        memory = (*(_filled(dtype, count) for dtype, count in trial.memory), torch.empty(0, dtype=torch.uint8))
        launches = [_launch(trial, way, binary, memory) for way, binary in enumerate(_binaries(trial, architecture()))]
        samples = _samples(launches)
        return [statistics.median(mine) if mine else float("inf") for mine in samples]

    return clock


def _filled(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Numbers like those of a model; zeros for what may be an index."""
    if not dtype.is_floating_point:
        return torch.zeros(count, dtype=dtype, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.empty(count, dtype=dtype, device="cuda").normal_(generator=generator)


def _binaries(trial: Trial, architecture: Architecture) -> list[Binary | None]:
    def compiled(place: int) -> Binary | None:
        try:
            return compile_texts([trial.ways[place].text], architecture)[0]
        except CodegenError:
            return None

    with ThreadPoolExecutor(min(WORKERS, len(trial.ways))) as pool:
        return list(pool.map(compiled, range(len(trial.ways))))


def _launch(trial: Trial, place: int, binary: Binary | None, memory: tuple[torch.Tensor, ...]) -> Launch | None:
    """Launches a way once; ``None`` if it cannot be run."""
    if binary is None:
        return None
    way, count = trial.ways[place], len(trial.memory)
    numbers = (1.0,) * len(way.kernel.numbers)
    table = CallTable(1, count, (), (TabledCall(0, tuple(range(count)), 0, len(numbers)),))
    blocks = int(way.blocks)
    launch = make_launch(Kernels(table, lambda *_: [binary], (1,), lambda _: (blocks,), lambda _: 0))
    parameters: tuple[int, ...] = ()

    def once() -> None:
        launch(memory, parameters, numbers)

    try:
        once()
        torch.cuda.current_stream().synchronize()
    except (CodegenError, RuntimeError):
        return None
    return once


def _samples(launches: list[Launch | None]) -> list[list[float]]:
    """Seconds of one launch, several times, in turns."""
    samples: list[list[float]] = [[] for _ in launches]
    for _ in range(_TURNS):
        marks = []
        for place, launch in enumerate(launches):
            if launch is None:
                continue
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(_LAUNCHES):
                launch()
            end.record()
            marks.append((place, begin, end))
        torch.cuda.current_stream().synchronize()
        for place, begin, end in marks:
            samples[place].append(begin.elapsed_time(end) * 1e-3 / _LAUNCHES)
    return samples
