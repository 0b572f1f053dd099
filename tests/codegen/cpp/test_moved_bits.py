"""16-bit floats that are only moved keep their bits: signs and payloads of NaN, in whole and in partial vectors."""

from __future__ import annotations

import pytest
import torch
from printed_kernels import Library, print_module
from sample_kernels import i0, i1, kernel, load, loop, number, p0, p1, store

from mixbackend.backends.codegen.ir.kernel import Kernel, Nest
from mixbackend.backends.codegen.ir.scalar import apply


def _chosen(dtype: str) -> Kernel:
    """Elements where a flag is set (read only there), a constant elsewhere, of every second row."""
    kind, at = getattr(torch, dtype), i0 * p1 + i1
    flag = load("b1", at, torch.bool)
    value = apply("where", flag, load("b0", 2 * i0 * p1 + i1, kind, mask=flag, other=3.0), number(-0.3))
    nest = Nest((loop(i0, p0), loop(i1, p1, "vector")), (), (store("b2", at, value),))
    return kernel(f"read {dtype}, read bool, write {dtype}", [nest])


def _doubled(dtype: str) -> Kernel:
    kind = getattr(torch, dtype)
    value = load("b0", i0, kind)
    return kernel(
        f"read {dtype}, write {dtype}",
        [Nest((loop(i0, p0, "vector"),), (), (store("b1", i0, apply("add", value, value)),))],
    )


TYPES = ("float16", "bfloat16")
KERNELS = {f"{form.__name__[1:]}_{dtype}": form(dtype) for form in (_chosen, _doubled) for dtype in TYPES}


@pytest.fixture(scope="module", params=(16, 64))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(KERNELS, tmp_path_factory.mktemp("bits"), request.param)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 16, 75])
def test_every_pattern_of_bits_is_kept(library: Library, dtype: torch.dtype, columns: int) -> None:
    rows = 65536 // columns // 2
    source = torch.arange(2 * rows * columns, dtype=torch.int32).to(torch.int16)
    flags = torch.rand(rows * columns, generator=torch.Generator().manual_seed(columns)) > 0.3
    result = torch.zeros(rows * columns, dtype=torch.int16)
    library.run(f"chosen_{str(dtype)[6:]}", {"b0": source, "b1": flags, "b2": result}, [rows, columns], [])
    constant = torch.tensor(-0.3, dtype=dtype).view(torch.int16)
    every_second = source.view(rows, 2, columns)[:, 0].reshape(-1)
    assert torch.equal(result, torch.where(flags, every_second, constant))


@pytest.mark.parametrize("dtype", TYPES)
def test_only_what_is_computed_is_converted(dtype: str) -> None:
    assert "bits_at" not in print_module([("doubled", KERNELS[f"doubled_{dtype}"])])
    assert "bits_at" in print_module([("chosen", KERNELS[f"chosen_{dtype}"])])
