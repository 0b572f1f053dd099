"""Tuning: which of several plans of a kernel is fastest, found by running them.

Place: asked while a program is printed. Where candidates are measured (``max-autotune``) it measures, elsewhere it
takes what was measured before, or the model's plan. Input: a kernel under several plans, the model's first. Output: the
fastest. What was found is remembered by content (text, number of blocks, GPU, Triton, our printer), in this process and
in the user's cache for later ones. What was chosen is in the texts that are compiled, and so in every artifact.
Kernels with symbolic sizes keep the model's plan: no one size is theirs.
Invariants: nothing here touches the user's tensors or torch's random stream. Plans that cannot be compiled lose; where
nothing can be measured the model's plan is taken, and nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mixbackend.backends.codegen.targets.triton.printing import PrintedKernel
from mixbackend.backends.common import forks
from mixbackend.backends.common.fastest_ways import FastestWays

Clock = Callable[["Trial"], list[float]]
"""Seconds of one launch of each way; infinite for those that cannot be run."""

MOST_PLANS = 16
"""Plans of a kernel, with room to spare."""

WORTH = 0.97
"""Share of the model's seconds below which another plan is taken: measurements scatter."""


@dataclass(frozen=True)
class Trial:
    """One kernel in several ways, and the memory that it touches.

    Attributes:
        ways: the same kernel under several plans.
        memory: type and number of elements of each buffer.
    """

    ways: tuple[PrintedKernel, ...]
    memory: tuple[tuple[torch.dtype, int], ...]


class Tuner:
    """Chooses plans.

    Args:
        clock: measures; ``None`` takes what is remembered.
        machine: everything that the times depend on beside the texts.
        folder: where choices are remembered; ``None`` for this process alone.
    """

    def __init__(self, clock: Clock | None, machine: str, folder: Callable[[], Path] | None) -> None:
        self._clock = clock
        self._machine = machine
        self._known = FastestWays(folder)
        self._lock = forks.long_lock()

    @property
    def measures(self) -> bool:
        """Whether plans are measured."""
        return self._clock is not None

    def choose(self, first: PrintedKernel, several: Callable[[], Sequence[PrintedKernel]]) -> PrintedKernel:
        """The fastest of several plans of a kernel.

        Args:
            first: the model's.
            several: gives all, the model's first.
        """
        if first.kernel.parameters:
            return first
        question = self._question(first)
        # One at a time: kernels that run side by side disturb one another.
        with self._lock:
            place = self._known.place(question, MOST_PLANS)
            place = self._measured(question, first, several) if place is None else place
        ways = several() if place else ()
        return ways[place] if place < len(ways) else first

    def _measured(self, question: str, first: PrintedKernel, several: Callable[[], Sequence[PrintedKernel]]) -> int:
        """Place of the fastest, 0 where nothing is measured."""
        memory = None if self._clock is None else memory_of(first)
        ways = () if memory is None else tuple(several())
        if self._clock is None or memory is None or len(ways) < 2:
            self._known.remember(question, 0, ())
            return 0
        seconds = self._clock(Trial(ways, memory))
        place = fastest(seconds)
        self._known.remember(question, place, seconds)
        return place

    def _question(self, way: PrintedKernel) -> str:
        """The kernel is what its text under the model's plan says; other plans follow from it and from the printer."""
        parts = [self._machine, way.text.body, str(way.text.warps), str(way.text.stages), str(way.blocks)]
        return "\0".join(parts)


def fastest(seconds: Sequence[float]) -> int:
    """Place of the fastest, the first unless another one is clearly faster."""
    best = min(range(len(seconds)), key=seconds.__getitem__)
    return best if seconds[best] < WORTH * seconds[0] else 0


def memory_of(way: PrintedKernel) -> tuple[tuple[torch.dtype, int], ...] | None:
    """Type and size of each buffer of a kernel; ``None`` where sizes are not known."""
    from mixbackend.backends.codegen.ir.kernel import Kernel
    from mixbackend.backends.codegen.targets.triton.reach import elements_of

    kernel = way.kernel
    assert isinstance(kernel, Kernel), "templates have one plan"
    sizes = elements_of(kernel)
    if any(size is None for size in sizes.values()):
        return None
    return tuple((item.dtype, int(sizes[item.name] or 1)) for item in kernel.buffers)
