"""Weights in large pages are the same weights."""

from __future__ import annotations

import mmap

import pytest
import torch

from mixbackend.backends.common.large_pages import (
    PAGE_BYTES,
    empty_in_large_pages,
    in_large_pages,
)


def _values() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 1001, generator=generator)
    turned = torch.randn(700, 300, generator=generator).t()[3:, ::2]
    numbers = torch.arange(900_000).to(torch.int16)
    return [rows, turned, numbers, rows.bfloat16(), torch.empty(0, 4)]


def test_values_and_strides_stay() -> None:
    values = _values()
    moved = in_large_pages(values)
    for value, other in zip(values, moved, strict=True):
        assert torch.equal(value, other) and value.stride() == other.stride() and value.dtype == other.dtype
    owners = {item.untyped_storage().data_ptr() for item in moved}
    assert len(owners) == 1, "all of them lie in one piece"
    assert all(item.data_ptr() % 64 == 0 for item in (moved[0], moved[2], moved[3]))
    del values
    moved[0].add_(1.0)
    assert torch.equal(moved[2], _values()[2]), "they do not overlap"


def test_little_and_what_systems_lack_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [torch.ones(PAGE_BYTES // 8), torch.ones(3)]
    assert all(kept is value for kept, value in zip(in_large_pages(small), small, strict=True))
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    values = _values()
    assert all(kept is value for kept, value in zip(in_large_pages(values), values, strict=True))


@pytest.mark.parametrize("size", [0, 100, PAGE_BYTES, 2 * PAGE_BYTES, 5 * PAGE_BYTES + 1])
def test_memory_is_at_least_as_large_as_asked(size: int) -> None:
    memory = empty_in_large_pages(size)
    assert memory.dtype == torch.uint8 and size <= memory.nbytes < size + PAGE_BYTES
    memory.fill_(3)
    assert (memory == 3).all() and memory.data_ptr() % 64 == 0
