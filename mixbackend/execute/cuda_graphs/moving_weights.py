"""Moving weights: what is not worth recording, since its weights lie elsewhere at every step.

Place: below ``recorded``, around what a recording calls. Input: the arguments of every recording of a segment.
A recording reads weights where they lie, so it is made anew once they have moved, which takes many times what the
segment does. A library that gathers weights for each use, as FSDP2 does, gives their storage new memory at every step.
Method: a weight is known by its storage, which forward and backward share. If one storage was elsewhere than at the
recording before ``MOST_MOVES`` times, its segment is not recorded any more. Layers that share a graph have storages of
their own, and so have weights that are exchanged now and then.
Invariants: nothing is looked at when a recording is replayed; no weight is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixbackend.contracts.torch_compat import storages_in_use, storages_of
from mixbackend.execute.run_function import Run

MOST_MOVES = 4
"""Once a storage was elsewhere so many times, nothing is recorded that reads it."""


class MovingWeights:
    """The weights of a segment; see the module's docstring.

    Args:
        places: of the weights among its inputs.
        on_moving: called once, in the middle of a recording.
    """

    def __init__(self, places: Sequence[int], on_moving: Callable[[], None]) -> None:
        self._places = tuple(places)
        self._on_moving = on_moving
        self._last: dict[Any, tuple[int, int]] = {}
        """By storage, where it was recorded last, and how often it had moved."""
        self._told = False

    def around(self, run: Run) -> Run:
        """The same run function; its recordings are looked at."""

        def watched(inputs: list[Any]) -> Sequence[Any]:
            if torch.cuda.is_current_stream_capturing():
                self._look(inputs)
            return run(inputs)

        return watched

    def _look(self, inputs: Sequence[Any]) -> None:
        self._last = {storage: found for storage, found in self._last.items() if storages_in_use([storage])}
        tensors = [inputs[place] for place in self._places]
        for tensor, storage in zip(tensors, storages_of(tensors), strict=True):
            where = tensor.untyped_storage().data_ptr()
            last, moves = self._last.get(storage, (where, 0))
            self._last[storage] = where, moves + (last != where)
        if not self._told and any(moves >= MOST_MOVES for _, moves in self._last.values()):
            self._told = True
            self._on_moving()
