"""Time several small computations so that load and thread pools disturb all of them alike.

Place: below device and backend calibration.
Input: functions without arguments. Output: seconds of one call, each.
Method: warm up, then rounds that go through all functions; of all samples the lower decile counts, because load and
foreign thread pools only ever add time, often several times as much as the computation itself. Calls that a GPU can
replay are timed by its own marks between the replays.
Non-goals: statistics for reports; benchmarks keep every sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Clock = Callable[[], float]
Call = Callable[[], object]
Watch = Callable[[Call, int], float]
"""Takes a call and how often to make it, one right after the other; gives seconds of all of them."""
Record = Callable[[Call], Call | None]
"""Takes a call; gives what replays several of them at once, ``None`` where they cannot be recorded."""

_FEWEST_ROUNDS = 4
_MOST_ROUNDS = 40
_SHORTEST_SAMPLE_S = 20e-6
_RECORDED_CALLS = 10
_SHORTEST_QUEUE_S = 1e-3
"""Where calls only queue work, a sample must be much longer than waiting for the device takes: what counts is how fast
calls follow one another, which is the longer of queueing and running."""
_SETTLED = 1.15
_EXTENSIONS = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one call.

    Attributes:
        seconds: as the module's docstring says.
        settled: whether enough samples agree; on a busy machine they may not.
    """

    seconds: float
    settled: bool


def time_calls(
    calls: Sequence[Call],
    seconds_each: float,
    synchronize: Call | None = None,
    clock: Clock = time.perf_counter,
    replayed: bool = True,
    record: Record | None = None,
) -> list[Timing]:
    """Time one call of each function.

    Args:
        calls: what to time.
        seconds_each: time to spend on each, about; slow functions are called a few times all the same, and those with
            samples that do not agree get as much again, twice.
        synchronize: waits until the device is done; ``None`` where calls return when done.
        clock: monotonic seconds.
        replayed: time what a GPU does, by replaying recorded calls; if not, or where a call cannot be recorded, what
            queueing takes counts if it is longer.
        record: records calls for replaying; by default as a CUDA graph.
    """
    by_clock = _by_clock(clock, synchronize)
    record = record or recorded_calls
    recorded = [record(call) if synchronize is not None and replayed else None for call in calls]
    series = [
        _Series(call, 1, seconds_each, by_clock, synchronize is not None)
        if replay is None
        else _Series(replay, _RECORDED_CALLS, seconds_each, seconds_by_marks, True)
        for call, replay in zip(calls, recorded, strict=True)
    ]
    for _ in range(1 + _EXTENSIONS):
        unsettled = [item for item in series if not item.settled()]
        for turn in range(_MOST_ROUNDS):
            for item in unsettled:
                if turn < item.rounds:
                    item.sample()
    return [Timing(item.best(), item.settled()) for item in series]


def _by_clock(clock: Clock, synchronize: Call | None) -> Watch:
    def watch(call: Call, count: int) -> float:
        begin = clock()
        for _ in range(count):
            call()
        if synchronize is not None:
            synchronize()
        return clock() - begin

    return watch


def seconds_by_marks(call: Call, count: int, before: Call | None = None) -> float:
    """What the GPU does between two marks in its queue, from when it is idle: the processor's way there and back is
    outside.

    Args:
        before: called before each call; then there are two marks around each, and what lies between is not counted.
    """
    torch.cuda.synchronize()
    marks = []
    for _ in range(1 if before is None else count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if before is not None:
            before()
        begin.record()
        for _ in range(count if before is None else 1):
            call()
        end.record()
        marks.append((begin, end))
    marks[-1][1].synchronize()
    return sum(begin.elapsed_time(end) for begin, end in marks) * 1e-3


def recorded_calls(call: Call) -> Call | None:
    """What replays ``_RECORDED_CALLS`` of these calls as one CUDA graph; nothing where that fails."""
    if not torch.cuda.is_available():
        return None
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(_RECORDED_CALLS):
                call()
    except RuntimeError:
        # It waits for the GPU, or for memory of the processor.
        torch.cuda.synchronize()
        return None
    return graph.replay


class _Series:
    """Samples of one function. The first call is a warm-up; the second tells how many fit."""

    def __init__(self, call: Call, times: int, seconds: float, watch: Watch, queued: bool) -> None:
        self._call = call
        self._times = times
        self._watch = watch
        self._samples: list[float] = []
        self._time(1)
        once = max(self._time(1), 1e-7)
        # The clock's own cost must not show in a sample, nor what waiting for a device costs.
        shortest = _SHORTEST_QUEUE_S if queued else _SHORTEST_SAMPLE_S
        self._batch = max(1, int(shortest / (once * times)))
        self.rounds = max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, int(seconds / (once * times * self._batch))))

    def sample(self) -> None:
        self._samples.append(self._time(self._batch))

    def settled(self) -> bool:
        """Whether the best sample is not alone: a quarter of all are near it."""
        if not self._samples:
            return False
        near = sum(1 for sample in self._samples if sample <= _SETTLED * min(self._samples))
        return near >= max(2, len(self._samples) // 4)

    def best(self) -> float:
        """The lower decile, so that one lucky sample does not decide."""
        ordered = sorted(self._samples)
        return ordered[len(ordered) // 10]

    def _time(self, batch: int) -> float:
        return self._watch(self._call, batch) / (batch * self._times)
