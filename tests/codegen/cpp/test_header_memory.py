"""Loads and stores of ``memory.hpp``: every type, every way, and never an element too many."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import pytest
import torch
from header_levels import C_NAMES, call, compiled, level_name, levels

from mixbackend.backends.codegen.targets.cpp.features import Features

_DTYPES = list(C_NAMES)
_COMPUTE = {"f16": "float", "bf16": "float", "i8": "i32", "u8": "i32", "i16": "i32"}


def _functions(storage: str) -> str:
    vector = _COMPUTE.get(storage, storage)
    head = f"{storage}* out, const {storage}* in, const i64* offsets, const u8* mask, i64 count, i64 stride"
    bodies = {
        "whole": f"store(out, load<{vector}>(in));",
        "partial": f"store_partial(out, load_partial<{vector}>(in, count), count);",
        "partial_zero": f"store(out, load_partial<{vector}>(in, count));",
        "masked": f"store(out, load_masked<{vector}>(in, load_mask(mask), 7));",
        "masked_store": f"store_masked(out, load<{vector}>(in), load_mask(mask));",
        "strided": f"store(out, load_strided<{vector}>(in, stride));",
        "strided_partial": f"store(out, load_strided_partial<{vector}>(in, stride, count));",
        "strided_store": f"store_strided(out, stride, load<{vector}>(in));",
        "strided_store_partial": f"store_strided_partial(out, stride, load<{vector}>(in), count);",
        "gather": f"store(out, load_gather<{vector}>(in, load<i64>(offsets)));",
        "gather_partial": f"store(out, load_gather_partial<{vector}>(in, load<i64>(offsets), count));",
        "gather_masked": f"store(out, load_gather_masked<{vector}>(in, load<i64>(offsets), load_mask(mask), 7));",
        "scatter": f"scatter_lanes(out, load<i64>(offsets), load<{vector}>(in), count);",
        "scalar": f"for (i64 i = 0; i < count; ++i) store_scalar(out + i, load_scalar<{vector}>(in + i));",
    }
    return "\n".join(f"void {storage}_{name}({head}) {{ {body} }}" for name, body in bodies.items())


_SOURCE = (
    "\n".join(_functions(name) for name in C_NAMES.values())
    + """
i64 lane_count() { return lanes; }
void flags(u8* out, const u8* in, const i64* offsets, const u8* mask, i64 count, i64 stride) {
    store_mask(out, load_mask(in));
    store_mask_partial(out + 32, load_mask_partial(in, count), count);
    store_mask(out + 64, load_mask_strided(in, stride));
    store_mask_strided(out + 96, stride, load_mask(in));
    store_mask(out + 192, load_mask_gather(in, load<i64>(offsets)));
    store_mask(out + 224, load_mask_masked(in, load_mask(mask), true));
    store_mask_masked(out + 256, load_mask(in), load_mask(mask));
}
"""
)


@pytest.fixture(scope="module", params=levels(), ids=level_name)
def library(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    yield compiled(_SOURCE, request.param)


def _values(dtype: torch.dtype, count: int) -> torch.Tensor:
    torch.manual_seed(count)
    if dtype.is_floating_point:
        return torch.randn(count, dtype=torch.float64).mul(100).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, (count,), dtype=dtype)


def _setting(library: ctypes.CDLL, dtype: torch.dtype) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]:
    lanes = library.lane_count()
    offsets = torch.randperm(3 * lanes)[:lanes].to(torch.int64)
    mask = torch.tensor([place % 3 != 1 for place in range(lanes)])
    return lanes, _values(dtype, 4 * lanes), offsets, mask


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_loads_read_the_elements_they_name(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    lanes, values, offsets, mask = _setting(library, dtype)
    count, stride, name = max(1, lanes - 3), 3, C_NAMES[dtype]
    first = torch.arange(lanes) < count
    zero, seven = torch.zeros(lanes, dtype=dtype), torch.full((lanes,), 7, dtype=dtype)
    strided = values[: stride * lanes : stride]
    expected = {
        "whole": values[:lanes],
        "partial_zero": torch.where(first, values[:lanes], zero),
        "masked": torch.where(mask, values[:lanes], seven),
        "strided": strided,
        "strided_partial": torch.where(first, strided, zero),
        "gather": values[offsets],
        "gather_partial": torch.where(first, values[offsets], zero),
        "gather_masked": torch.where(mask, values[offsets], seven),
    }
    for way, result in expected.items():
        actual = torch.full((lanes,), 3, dtype=dtype)
        call(library, f"{name}_{way}", actual, values, offsets, mask, count, stride)
        assert torch.equal(actual, result), way


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_gathers_take_elements_at_any_address_before_and_behind_the_pointer(
    library: ctypes.CDLL, dtype: torch.dtype
) -> None:
    lanes, values, offsets, mask = _setting(library, dtype)
    name = C_NAMES[dtype]
    for ahead in range(1, 6):
        around = offsets - ahead
        expected = {
            "gather": values[offsets],
            "gather_partial": torch.where(torch.arange(lanes) < 5, values[offsets], torch.zeros(lanes, dtype=dtype)),
            "gather_masked": torch.where(mask, values[offsets], torch.full((lanes,), 7, dtype=dtype)),
        }
        for way, result in expected.items():
            actual = torch.full((lanes,), 3, dtype=dtype)
            call(library, f"{name}_{way}", actual, values[ahead:], around, mask, min(5, lanes), 1)
            assert torch.equal(actual, result), (way, ahead)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_stores_write_the_elements_they_name_and_no_other(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    lanes, values, offsets, mask = _setting(library, dtype)
    stride, name = 3, C_NAMES[dtype]
    for count in range(lanes + 1):
        place = torch.arange(count)
        expected = {
            "partial": (place, values[:count]),
            "strided_store_partial": (place * stride, values[:count]),
            "scatter": (offsets[:count], values[:count]),
            "masked_store": (mask.nonzero()[:, 0], values[:lanes][mask]),
            "strided_store": (torch.arange(lanes) * stride, values[:lanes]),
            "scalar": (place, values[:count]),
        }
        for way, (places, written) in expected.items():
            actual = torch.full((4 * lanes,), 3, dtype=dtype)
            wanted = actual.clone()
            wanted[places] = written
            call(library, f"{name}_{way}", actual, values, offsets, mask, count, stride)
            assert torch.equal(actual, wanted), (way, count)


def test_masks_are_bytes_of_which_any_but_zero_is_true(library: ctypes.CDLL) -> None:
    lanes = library.lane_count()
    given = torch.tensor([0, 1, 255, 0, 2, 0, 0, 128] * 8, dtype=torch.uint8)
    truth = (given != 0).to(torch.uint8)
    offsets = torch.randperm(64)[:lanes].to(torch.int64)
    mask = torch.arange(lanes) % 2 == 0
    out = torch.full((288,), 9, dtype=torch.uint8)
    call(library, "flags", out, given, offsets, mask, lanes - 1, 3)
    nine = torch.full((lanes,), 9, dtype=torch.uint8)
    one = torch.ones(lanes, dtype=torch.uint8)
    assert torch.equal(out[:lanes], truth[:lanes])
    assert torch.equal(out[32 : 32 + lanes], torch.cat([truth[: lanes - 1], nine[:1]]))
    assert torch.equal(out[64 : 64 + lanes], truth[: 3 * lanes : 3])
    assert torch.equal(out[96 : 96 + 3 * lanes : 3], truth[:lanes])
    assert torch.equal(out[97 : 96 + 3 * lanes : 3], nine)
    assert torch.equal(out[192 : 192 + lanes], truth[offsets])
    assert torch.equal(out[224 : 224 + lanes], torch.where(mask, truth[:lanes], one))
    assert torch.equal(out[256 : 256 + lanes], torch.where(mask, truth[:lanes], nine))


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_nothing_behind_the_last_element_is_touched(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    """The elements end where the next page may not be read: touching it would end the process."""
    lanes, name = library.lane_count(), C_NAMES[dtype]
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0) == 0
    offsets, out = torch.arange(lanes), torch.empty(lanes, dtype=dtype)
    for count in range(lanes + 1):
        end = ctypes.c_void_p(start + page - count * dtype.itemsize)
        mask = torch.arange(lanes) < count
        rest = (ctypes.c_void_p(offsets.data_ptr()), ctypes.c_void_p(mask.data_ptr()), ctypes.c_longlong(count))
        result = ctypes.c_void_p(out.data_ptr())
        for way in ("partial_zero", "masked", "strided_partial", "gather_partial", "gather_masked"):
            getattr(library, f"{name}_{way}")(result, end, *rest, ctypes.c_longlong(1))
        for way in ("partial", "masked_store", "strided_store_partial", "scatter", "scalar"):
            source = end if way in ("partial", "scalar") else result
            getattr(library, f"{name}_{way}")(end, source, *rest, ctypes.c_longlong(1))
    protect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 3)


def test_levels_differ_in_lanes() -> None:
    widths: list[Features] = levels()
    assert len({features.vector_bytes for features in widths}) == len(widths)
    for features in widths:
        assert compiled(_SOURCE, features).lane_count() == features.vector_bytes // 4
