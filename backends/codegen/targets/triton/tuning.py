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

import hashlib
import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from mixbackend.backends.codegen.targets.triton.printing import PrintedKernel

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
        self._find_folder = folder
        self._known: dict[str, int] = {}
        self._lock = threading.Lock()

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
        key = self._key(first)
        # One at a time: kernels that run side by side disturb one another.
        with self._lock:
            place = self._known.get(key)
            place = self._remembered(key) if place is None else place
            place = self._measured(key, first, several) if place is None else place
            self._known[key] = place
        ways = several() if place else ()
        return ways[place] if place < len(ways) else first

    def _measured(self, key: str, first: PrintedKernel, several: Callable[[], Sequence[PrintedKernel]]) -> int:
        """Place of the fastest, 0 where nothing is measured."""
        memory = None if self._clock is None else memory_of(first)
        ways = () if memory is None else tuple(several())
        if self._clock is None or memory is None or len(ways) < 2:
            return 0
        seconds = self._clock(Trial(ways, memory))
        place = fastest(seconds)
        if not all(map(math.isinf, seconds)):
            self._remember(key, place, seconds)
        return place

    def _key(self, way: PrintedKernel) -> str:
        """The kernel is what its text under the model's plan says; other plans follow from it and from the printer."""
        parts = [self._machine, way.text.body, str(way.text.warps), str(way.text.stages), str(way.blocks)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @cached_property
    def _folder(self) -> Path | None:
        return None if self._find_folder is None else self._find_folder()

    def _remembered(self, key: str) -> int | None:
        if self._folder is None:
            return None
        try:
            place = json.loads((self._folder / f"{key}.json").read_text())["place"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return place if isinstance(place, int) and 0 <= place < MOST_PLANS else None

    def _remember(self, key: str, place: int, seconds: Sequence[float]) -> None:
        if self._folder is None:
            return
        kept = {"place": place, "seconds": [None if math.isinf(item) else item for item in seconds]}
        part = self._folder / f"{key}.{threading.get_ident()}.part"
        try:
            part.write_text(json.dumps(kept))
            part.replace(self._folder / f"{key}.json")
        except OSError:
            part.unlink(missing_ok=True)


def fastest(seconds: Sequence[float]) -> int:
    """Place of the fastest, the first unless another one is clearly faster."""
    best = min(range(len(seconds)), key=seconds.__getitem__)
    return best if seconds[best] < WORTH * seconds[0] else 0


def memory_of(way: PrintedKernel) -> tuple[tuple[torch.dtype, int], ...] | None:
    """Type and size of each buffer of a kernel; ``None`` where sizes are not known."""
    from mixbackend.backends.codegen.targets.triton.reach import elements_of

    kernel = way.kernel
    sizes = elements_of(kernel)
    if any(size is None for size in sizes.values()):
        return None
    return tuple((item.dtype, int(sizes[item.name] or 1)) for item in kernel.buffers)
