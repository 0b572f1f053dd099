"""Threads: one compiled region in several threads at once, each with values of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import torch

from mixbackend.certify.tested import NotAsked, Problem, Tested, eager_refuses, one_line
from mixbackend.certify.variants import copies, other_values

_CALLS = 40
"""Of each of two threads."""
_SWITCH_S = 1e-6
"""After so long Python looks whether another thread wants to run: so that threads meet in the middle of a call."""


def several_threads(tested: Tested) -> Problem | None:
    """Calls of two threads at once return what each returns alone."""
    if not tested.backend.traits().reentrant:
        raise NotAsked("its calls are serialised, by its traits")
    if tested.random or tested.region.written:
        raise NotAsked("what it draws or writes is shared by all threads")
    second = other_values(tested.region, tested.case.inputs)
    if second is None or eager_refuses(tested.region, second):
        raise NotAsked("its values cannot be changed")
    given = (tested.inputs(), copies(second))
    alone = [tested.call(inputs) for inputs in given]
    barrier = Barrier(len(given))

    def work(place: int) -> str:
        barrier.wait()
        for _ in range(_CALLS):
            outputs = tested.call(given[place])
            if not all(map(_close, outputs, alone[place])):
                return "a call returned what another thread's call computes, or a mixture"
        return ""

    with _switching_often(), ThreadPoolExecutor(len(given)) as pool:
        try:
            found = list(pool.map(work, range(len(given))))
        except Exception as error:
            return Problem("threads", f"a call beside another raises {one_line(error)}")
    wrong = next(filter(None, found), "")
    return Problem("threads", wrong) if wrong else None


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _close(mine: Any, alone: torch.Tensor) -> bool:
    """Up to the order of sums, which may differ from call to call."""
    if alone.is_complex():
        return _close(torch.view_as_real(mine.resolve_conj()), torch.view_as_real(alone.resolve_conj()))
    if not alone.is_floating_point():
        return torch.equal(mine, alone)
    return torch.allclose(mine.double(), alone.double(), rtol=1e-2, atol=1e-3, equal_nan=True)
