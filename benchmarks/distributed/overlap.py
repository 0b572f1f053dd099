"""How much of the time of communication kernels other kernels run beside them, by torch's profiler.

Place: below ``rank``. Input: steps to profile on one GPU. Output: ``Overlap``. Kernels of NCCL wait for the other
ranks, so their time is that of communication and of ranks that come late.
Non-goals: gloo: its threads are no device of the profiler's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType

Span = tuple[float, float]
_COMMUNICATION = ("ncclDev", "ncclKernel", "ncclSymk")
_NO_KERNELS = ("Memcpy", "Memset", "nccl:")


@dataclass(frozen=True, slots=True)
class Overlap:
    """In milliseconds of one step.

    Attributes:
        communication: when a communication kernel ran.
        computation: when another kernel ran.
        both: when both did.
    """

    communication: float
    computation: float
    both: float


def profiled(steps: int, run: Callable[[], object]) -> Overlap:
    """Profile some steps on this rank's GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            run()
        torch.cuda.synchronize()
    kernels = [
        (event.name, (event.time_range.start, event.time_range.end))
        for event in profile.events() or ()
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    return overlap_of(kernels, steps)


def overlap_of(kernels: Iterable[tuple[str, Span]], steps: int) -> Overlap:
    """Of named kernels, their spans in microseconds."""
    named = [(name.removeprefix("void "), span) for name, span in kernels]
    communication = _union(span for name, span in named if name.startswith(_COMMUNICATION))
    computation = _union(span for name, span in named if not name.startswith((*_COMMUNICATION, *_NO_KERNELS)))
    lengths = _length(communication), _length(computation)
    both = sum(lengths) - _length(_union([*communication, *computation]))
    return Overlap(*(round(value / steps / 1e3, 4) for value in (*lengths, both)))


def _union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)
