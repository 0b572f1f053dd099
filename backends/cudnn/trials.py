"""Trials: which of several ways to compute the same is fastest on this GPU, found by running them.

Place: asked while a region's calls are written. Input: ways, each a function without arguments on values made for the
trial. Output: the place of the fastest that works. Libraries have no kernel for every shape, and say so only when
they are called; and a fused kernel is not always the faster one.
Invariants: nothing here touches torch's random stream or the user's tensors; what was found is remembered, in the
user's cache too: a library that lost is not even loaded by later processes. Where no GPU is at hand, the first counts.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import torch

from mixbackend.backends.common import forks
from mixbackend.backends.common.fastest_ways import FastestWays
from mixbackend.backends.common.private_folder import private_cache_folder
from mixbackend.contracts import TensorMeta, hint_of
from mixbackend.contracts.gpu import gpu_fingerprint
from mixbackend.contracts.torch_compat import outside_compilation

_WARM_RUNS = 2
_RUNS = 7

Way = Callable[[], torch.Tensor]


class Trials:
    """Ways run against one another, one question at a time.

    Args:
        known: answers so far.
        gpu: tells this GPU from others.
    """

    def __init__(self, known: FastestWays, gpu: Callable[[], str] = gpu_fingerprint) -> None:
        self._known = known
        self._gpu = gpu
        self._lock = forks.long_lock()

    def fastest(self, names: Sequence[str], question: Sequence[object], make: Callable[[], Sequence[Way]]) -> int:
        """Place of the fastest of several ways; 0 where nothing can be run.

        Args:
            names: of the ways.
            question: what the answer depends on beside them, the GPU and torch; texts of it are compared.
            make: makes the ways, and the values that they run on. A way that raises loses.
        """
        if not torch.cuda.is_available():
            return 0
        whole = "\0".join(map(str, (torch.__version__, self._gpu(), *names, *question)))
        with self._lock:
            place = self._known.place(whole, len(names))
            if place is None:
                with outside_compilation(), torch.autocast("cuda", enabled=False):
                    seconds = [_seconds(way) for way in make()]
                place = min(range(len(seconds)), key=seconds.__getitem__)
                self._known.remember(whole, place, seconds)
            return place


fastest = Trials(FastestWays(lambda: private_cache_folder("gpu-trials"))).fastest
"""By this process's GPU; answers are kept in the user's cache."""


def _seconds(way: Way) -> float:
    """Of one run, the median of a few; infinite if it does not run."""
    try:
        for _ in range(_WARM_RUNS):
            way()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(_RUNS + 1)]
        marks[0].record()
        for mark in marks[1:]:
            way()
            mark.record()
        marks[-1].synchronize()
    except RuntimeError:
        return float("inf")
    return 1e-3 * statistics.median(first.elapsed_time(second) for first, second in itertools.pairwise(marks))


def stand_in(meta: TensorMeta) -> torch.Tensor:
    """A tensor of small random numbers with this meta; expanded dimensions share memory, as they do in the model."""
    stride = [hint_of(step) for step in meta.stride]
    shape = [hint_of(size) for size in meta.shape]
    stored = [1 if step == 0 else size for size, step in zip(shape, stride, strict=True)]
    generator = torch.Generator(meta.device).manual_seed(0)
    value = torch.empty_strided(stored, stride, dtype=meta.dtype, device=meta.device)
    value.copy_(torch.randn(stored, device=meta.device, generator=generator) / 8)
    return value.expand(shape)
