"""Memory that is used at every call, which the system may map in large pages.

Place: below backends that lay out weights when a region is bound, and their workspaces. Input: tensors on the
processor, or a size. Output: equal tensors, or memory.
Why: a model's weights pass through the caches at each call, and pages of 4 KB need a walk through tables each, which
prefetching waits for as well; in a virtual machine that made products of 128 rows a tenth slower. Small pages also lie
anywhere in the machine's memory, so that what fits into a cache by its size may not stay there.
Results that are too large for the C library to keep their memory are new at each call, with a fault for every page
when they are written: one of 200 MB took 28 ms longer than memory that was there, 6 ms with large pages.
Invariants: shapes, strides and values stay; where the system has no large pages, or there is little to gain, the
tensors are returned as they are.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

PAGE_BYTES = 2 << 20
"""Of a large page on x86, and on 64-bit ARM with small pages of 4 KB."""
NEW_BYTES = 32 << 20
"""Pieces of memory larger than this are the system's as soon as nobody uses them."""
_LINE_BYTES = 64


def in_large_pages(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values side by side in one piece of memory, which lives as long as one of them."""
    home = _large_pages(sum(_rounded(value.untyped_storage().nbytes()) for value in values))
    if home is None:
        return list(values)
    moved, start = [], 0
    for value in values:
        source = value.untyped_storage()
        place = home[start : start + source.nbytes()]
        place.copy_(torch.empty(0, dtype=torch.uint8).set_(source))
        # Untyped memory has no element type of its own; the view takes the value's.
        storage, first = home.untyped_storage(), start // value.dtype.itemsize + value.storage_offset()
        moved.append(torch.empty(0, dtype=value.dtype).set_(storage, first, value.shape, value.stride()))
        start += _rounded(source.nbytes())
    return moved


def empty_in_large_pages(size: int) -> torch.Tensor:
    """So many bytes or more, in memory like that."""
    home = _large_pages(-(-size // PAGE_BYTES) * PAGE_BYTES)
    return torch.empty(size, dtype=torch.uint8) if home is None else home


def faulting_less(fresh: torch.Tensor) -> torch.Tensor:
    """The same tensor, which nobody has written yet; if it is large, the system is asked for large pages."""
    advise = _advise() if fresh.nbytes > NEW_BYTES else None
    if advise is not None:
        # The rest of the first page is the allocator's, and in use.
        first = -(-fresh.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(first, fresh.data_ptr() + fresh.nbytes - first, mmap.MADV_HUGEPAGE)
    return fresh


@lru_cache(maxsize=1)
def _advise() -> Callable[[int, int, int], int] | None:
    """The system's call, where there is one; it is advice, and an error changes nothing."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise


def _large_pages(size: int) -> torch.Tensor | None:
    if size < 2 * PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return None
    return torch.frombuffer(memory, dtype=torch.uint8)


def _rounded(count: int) -> int:
    return -(-count // _LINE_BYTES) * _LINE_BYTES
