"""Memory for large results on the processor, kept from call to call.

Place: asked by backends that allocate their results themselves, vendors' included.
Input: shape, stride and type. Output: a tensor with undefined values.
Why: the C library gives pieces above 32 MB back to the system as soon as they are free, and every page of the next one
is a fault when it is written: 40 ms for the 200 MB of logits that a language model returns for eight texts. Runtimes
with arenas of their own do not pay that.
Invariants: a piece serves again only if nothing but this module holds it: no tensor, view, storage or array, in this
process or another; it is exactly as large as what is asked for, so that nothing of an older result can leave with it.
Never more than a limit is kept, in use or not: results that many calls left behind are the system's again as soon as
they are dropped, and so is what was shared with another process. Results are ordinary tensors of torch's allocator.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from threading import Lock

import torch

from mixbackend.contracts.torch_compat.memory import is_sole_holder

LARGEST_KEPT_BYTES = 32 << 20
"""Pieces up to this size glibc keeps when it is told so, and no larger ones."""
MOST_KEPT_BYTES = 1 << 30
"""Bytes of memory that are kept, in use or not; what is dropped beyond them is the system's again."""


def new_result(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor for a region to write, in memory that was there before if it is large and such memory is free."""
    size = spanned(shape, stride) * dtype.itemsize
    if size <= LARGEST_KEPT_BYTES:
        return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    return torch.empty(0, dtype=dtype, device="cpu").set_(_KEPT.take(size), 0, shape, stride)


def forget_unused_results() -> None:
    """Give back what no result lies in at this moment."""
    _KEPT.forget_unused()


Advise = Callable[[int, int, int], int]
"""The system's call: an address, bytes, and what is advised."""


def system_advice() -> Advise | None:
    """``madvise``, where there is one; it is advice, and an error changes nothing."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise


class KeptMemory:
    """Pieces of memory that results lie in, or have lain in.

    Args:
        most: bytes that are kept, those in use counted: all of them may be dropped at once.
        advise: asks the system for large pages, where it can be asked: fewer faults, if there must be faults.
    """

    def __init__(self, most: int, advise: Advise | None) -> None:
        self._most = most
        self._advise = advise
        self._pieces: list[torch.Tensor] = []
        """The last taken is the last: the likeliest to be in a cache still."""
        self._lock = Lock()

    def take(self, size: int) -> torch.UntypedStorage:
        """A piece of exactly so many bytes, which is in use for as long as anything else holds it."""
        with self._lock:
            fitting = (piece for piece in reversed(self._pieces) if _bytes_of(piece) == size)
            found = next(filter(is_sole_holder, fitting), None)
            # Older ones are dropped before it is made, if it needs their room.
            self._pieces = _newest([piece for piece in self._pieces if piece is not found], self._most - size)
            taken = self._new_piece(size) if found is None else found
            if size <= self._most:
                self._pieces.append(taken)
            # Within the lock: to other threads it is in use from here on.
            return taken.untyped_storage()

    def forget_unused(self) -> None:
        """Keep what is in use."""
        with self._lock:
            self._pieces = [piece for piece in self._pieces if not is_sole_holder(piece)]

    def hold(self) -> None:
        """No thread can take a piece until ``let_go``."""
        self._lock.acquire()

    def let_go(self) -> None:
        """See ``hold``."""
        self._lock.release()

    def _new_piece(self, size: int) -> torch.Tensor:
        fresh = torch.empty(size, dtype=torch.uint8, device="cpu")
        if self._advise is not None:
            # The rest of the first page is the allocator's, and in use.
            first = -(-fresh.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
            self._advise(first, fresh.data_ptr() + size - first, mmap.MADV_HUGEPAGE)
        return fresh


_KEPT = KeptMemory(MOST_KEPT_BYTES, system_advice())

if hasattr(os, "register_at_fork"):
    # The child finds the lock free, and what it guards whole.
    os.register_at_fork(before=_KEPT.hold, after_in_parent=_KEPT.let_go, after_in_child=_KEPT.let_go)


def _newest(pieces: Sequence[torch.Tensor], most: int) -> list[torch.Tensor]:
    """The last of them that are no more than so many bytes together; none that was shared with another process, which
    would stay shared for as long as we hold it."""
    own = [piece for piece in reversed(pieces) if not piece.is_shared()]
    totals = accumulate(map(_bytes_of, own))
    return [piece for piece, total in zip(own, totals, strict=True) if total <= most][::-1]


def _bytes_of(piece: torch.Tensor) -> int:
    """Of the whole piece: an earlier holder may have resized it."""
    return piece.untyped_storage().nbytes()


def spanned(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
