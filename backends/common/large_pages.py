"""Memory that is used at every call, which the system may map in large pages.

Place: below backends that lay out weights when a region is bound, and their workspaces. Input: tensors on the
processor, or a size. Output: equal tensors, or memory.
Why: a model's weights pass through the caches at each call, and pages of 4 KB need a walk through tables each, which
prefetching waits for as well; in a virtual machine that made products of 128 rows a tenth slower. Small pages also lie
anywhere in the machine's memory, so that what fits into a cache by its size may not stay there.
Invariants: shapes, strides and values stay; where the system has no large pages, or there is little to gain, the
tensors are returned as they are.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch

PAGE_BYTES = 2 << 20
"""Of a large page on x86, and on 64-bit ARM with small pages of 4 KB."""
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
