"""Kept inputs: what a call's inputs held before it, to see what was written into them and to put it back.

Place: around a checked call, see ``checked_call``. Input: a region and the arguments of one call. Output: after the
call, the inputs that were written though the region says nothing of it; they hold again what they held.
Method: what is no weight is copied, as far as a limit allows, and compared bit by bit; of everything else a checksum is
taken. A checksum changes with every single word, and with words that change places.
Invariants: inputs are only read until something was found. Weights are not copied: they are most of a model's memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from mixbackend.contracts import Region

MOST_COPIED_BYTES = 1 << 30
"""Of inputs of one call, on a GPU a share of what is free; what is more is known by its checksum, as weights are."""
_SHARE_OF_FREE = 1 / 8
_BLOCK = 1 << 18
"""So many words are summed up at a time: what is multiplied for that stays in a cache."""


@dataclass(frozen=True)
class Written:
    """Inputs that were written though the region does not say so.

    Attributes:
        restored: places of those that hold again what they held.
        lost: places of those that lost their values: weights, and what was too large to copy.
    """

    restored: tuple[int, ...]
    lost: tuple[int, ...]


class KeptInputs:
    """See the module's docstring.

    Args:
        region: what is to be called.
        inputs: its arguments, before the call.
        moving: places of inputs that other threads may write meanwhile: what they hold now counts, and no code is
            blamed for what comes after.
    """

    def __init__(self, region: Region, inputs: Sequence[Any], moving: Collection[int] = ()) -> None:
        self._region = region
        self._inputs = list(inputs)
        apart = {*region.written, *moving}
        self.before = list(inputs)
        """What the inputs held, for computing the same again; copies where that may change meanwhile."""
        self._copies: dict[int, torch.Tensor] = {}
        self._sums: dict[int, torch.Tensor] = {}
        budget = _copied_bytes(inputs)
        with torch.no_grad():
            for place in apart:
                self.before[place] = inputs[place].clone()
            for place, item in enumerate(region.inputs):
                value = inputs[place]
                if place in apart or not _has_words(value):
                    continue
                distinct = _distinct(value)
                if item.role.is_weight or distinct.nbytes > budget:
                    self._sums[place] = checksum(distinct)
                else:
                    budget -= distinct.nbytes
                    self._copies[place] = distinct.clone()

    def restore_declared(self) -> None:
        """Let the inputs that the region says it writes hold what they held before."""
        with torch.no_grad():
            for place in self._region.written:
                self._inputs[place].copy_(self.before[place])

    def undeclared(self) -> Written:
        """What was written beside that. The copies are let go."""
        restored, lost = [], []
        with torch.no_grad():
            for place, copy in self._copies.items():
                value = _distinct(self._inputs[place])
                if not _equal_bits(value, copy):
                    value.copy_(copy)
                    restored.append(place)
            for place, before in self._sums.items():
                if not torch.equal(checksum(_distinct(self._inputs[place])), before):
                    lost.append(place)
        self._copies.clear()
        return Written(tuple(restored), tuple(lost))


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Of all words of a tensor and their places, modulo 2 to the power of 64: one number, where the tensor lies."""
    words = _words(tensor)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for place, block in enumerate(words.split(_BLOCK)):
        factors = _factors(tensor.device)[: len(block)]
        total += (block * factors).sum(dtype=torch.int64) * (2 * place + 1)
    return total


@lru_cache(maxsize=8)
def _factors(device: torch.device) -> torch.Tensor:
    """Odd numbers, all different: none of them makes a change of one word vanish."""
    return torch.arange(_BLOCK, dtype=torch.int64, device=device) * 2 + 1


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor as integers, as wide ones as its size and place allow; without a copy where it is dense."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    flat = tensor.detach().permute(order).reshape(-1).contiguous().view(torch.uint8)
    for kind in (torch.int64, torch.int32, torch.int16):
        if flat.numel() % kind.itemsize == 0 and flat.storage_offset() % kind.itemsize == 0:
            return flat.view(kind)
    return flat


def _has_words(value: Any) -> bool:
    """Whether it has memory of elements that can be looked at: sparse tensors and packed weights do not."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel() > 0


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor that lie apart: of those that ``expand`` repeats, the first."""
    for axis in range(tensor.dim()):
        if tensor.stride(axis) == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if torch.equal(one, other):
        return True
    # NaN differs from itself.
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _copied_bytes(inputs: Sequence[Any]) -> float:
    gpus = {value.device for value in inputs if isinstance(value, torch.Tensor) and value.is_cuda}
    free = (torch.cuda.mem_get_info(device)[0] * _SHARE_OF_FREE for device in gpus)
    return min([MOST_COPIED_BYTES, *free])
