"""Tensors in and out of ONNX Runtime without copies.

Place: between the stitched call and a session.
Input: torch tensors and Python numbers. Output: ``OrtValue`` objects of the runtime's C level, and tensors back.
Invariants: an exchanged tensor keeps its storage alive; results are owned by torch; nothing is copied, except inputs
that are not contiguous (DLPack exchange of the runtime wants rows without gaps).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from onnxruntime.capi import _pybind_state as capi
from torch.utils.dlpack import from_dlpack, to_dlpack

from mixbackend.backends.onnxruntime.boundary import Entrance

_OrtValue = capi.OrtValue
_from_torch = _OrtValue.from_dlpack


def exchange_tensor(tensor: torch.Tensor) -> Any:
    """A tensor as an ``OrtValue`` on the same storage."""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.dtype is torch.bool:
        return _from_torch(to_dlpack(tensor.view(torch.uint8)), True)
    return _from_torch(to_dlpack(tensor), False)


def is_plain(entrance: Entrance) -> bool:
    """Whether ``exchange_plain`` does: most inputs of a call are activations, and none of them is bool."""
    return entrance.kind == "tensor" and entrance.dtype is not torch.bool


def exchange_plain(places: Sequence[tuple[int, str]], arguments: Sequence[Any]) -> dict[str, Any]:
    """The feed of plain tensors, at half a microsecond each: what ``exchange_tensor`` does, without a call for each."""
    exchange, give = _from_torch, to_dlpack
    return {
        name: exchange(give(tensor if (tensor := arguments[place]).is_contiguous() else tensor.contiguous()), False)
        for place, name in places
    }


@lru_cache(maxsize=1024)
def exchange_number(number: float, dtype: torch.dtype) -> Any:
    """A Python number as a scalar ``OrtValue``; sizes recur, so they are kept."""
    return exchange_tensor(torch.tensor(number, dtype=dtype))


def tensor_at(results: Any, index: int, is_bool: bool) -> torch.Tensor:
    """One result of the runtime as a tensor on the same storage.

    By index: walking over the runtime's vector of results costs some twenty microseconds, indexing a tenth of one.
    """
    tensor = from_dlpack(results[index].to_dlpack())
    return tensor.view(torch.bool) if is_bool else tensor


def in_order(tensor: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    """A tensor with its axes as the model takes them."""
    return tensor if order is None else tensor.permute(order)


_Kept = tuple[Callable[[], torch.Tensor | None], int, Any]
_NOTHING: _Kept = (lambda: None, 0, None)


class WeightSlot:
    """The exchanged form of one weight, kept while it is the same tensor at the same address, and no longer than that
    lives: its memory is its user's.

    Writes into the weight are seen, for the storage is shared. One slot holds one weight: layers that share compiled
    code exchange theirs anew at each call, which costs about a microsecond.
    """

    __slots__ = ("__weakref__", "_kept", "_order")

    def __init__(self, order: tuple[int, ...] | None = None) -> None:
        self._order = order
        self._kept: _Kept = _NOTHING

    def exchange(self, tensor: torch.Tensor) -> Any:
        """The ``OrtValue`` of a weight."""
        kept, address, value = self._kept
        if kept() is tensor and address == tensor.data_ptr():
            return value
        ready = in_order(tensor, self._order)
        # Another tensor on the same storage: the runtime's hold on it keeps the weight itself alive no longer.
        value = exchange_tensor(ready.detach())
        # A copy made because of gaps would not see later writes.
        if ready.is_contiguous():
            self._kept = (weakref.ref(tensor, self._forget), tensor.data_ptr(), value)
        return value

    def _forget(self, dead: Any) -> None:
        if self._kept[0] is dead:
            self._kept = _NOTHING


Converter = Callable[[Any], Any]


def converter(entrance: Entrance) -> Converter:
    """How a value comes in."""
    if entrance.kind == "number":
        return partial(exchange_number, dtype=entrance.dtype)
    return exchange_tensor if entrance.kind == "tensor" else WeightSlot(entrance.order).exchange
