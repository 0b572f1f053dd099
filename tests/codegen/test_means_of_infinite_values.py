"""Statistics of rows that hold infinities: spread and mean are eager's in every element, wherever the infinities are.

Eager moves one running mean from value to value for ``var_mean``, joins many of them for layer and group norm, and adds
for batch norm and for group norm of channels-last images: the mean of a row is infinite in one and NaN in another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
LAST = torch.channels_last


def mixed(rows: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows with no, one or several infinities and NaN: at the end, at the front, somewhere, of one sign or both."""
    generator = torch.Generator().manual_seed(rows * length)
    value = torch.randn(rows, length, generator=generator)
    odd = torch.tensor([math.inf, -math.inf, math.nan])
    places = [-1, 0, length // 2]
    for row in range(1, rows):
        value[row, places[row % 3]] = odd[row // 3 % 3]
        if row > rows // 2:
            place = int(torch.randint(length, (1,), generator=generator))
            value[row, place] = odd[row % 3]
    return value.to(dtype)


def image(dtype: torch.dtype, format: torch.memory_format = torch.contiguous_format, length: int = 6) -> torch.Tensor:
    return mixed(16, 2 * length, dtype).reshape(4, 8, length // 2, 2).contiguous(memory_format=format)


def channels(dtype: torch.dtype, length: int) -> torch.Tensor:
    """Of each channel of 16: two samples."""
    return mixed(16, length, dtype).reshape(16, 2, length // 2).transpose(0, 1).contiguous()


SPREADS: dict[str, Callable[[torch.Tensor], Any]] = {
    "var_mean": lambda x: aten.var_mean.correction(x, [1]),
    "std_mean": lambda x: aten.std_mean.correction(x, [1], correction=0),
    "var": lambda x: aten.var.correction(x, [1]),
    "std": lambda x: aten.std.correction(x, [1]),
    "all": lambda x: aten.var_mean.correction(x[:5], [0, 1]),
    "last alone": lambda x: aten.var_mean.correction(x[3:4].abs().nan_to_num(1.0, math.inf), [0, 1]),
    "columns": lambda x: aten.var_mean.correction(x, [0]),
    "one each": lambda x: aten.var_mean.correction(x[:, -1:], [1]),
    "layer_norm": lambda x: aten.native_layer_norm(x, [x.shape[1]], None, None, 1e-5),
}


def assert_like_eager(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    region = trace_region(function, list(inputs), phase="forward")
    results = CodegenBackend().compile(region).run(list(inputs))
    expected = function(*inputs)
    for result, eager in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert result.isnan().equal(eager.isnan()), (result, eager)
        infinite = eager.isinf()
        assert result[infinite].equal(eager[infinite])
        close = 2e-3 if result.dtype is torch.float16 else 1e-5
        torch.testing.assert_close(result, eager, rtol=close, atol=close, equal_nan=True)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("length", [5, 70])
def test_of_rows(name, length):
    assert_like_eager(SPREADS[name], mixed(20, length, torch.float32))


def test_of_other_types():
    assert_like_eager(SPREADS["std_mean"], mixed(12, 33, torch.float16))
    assert_like_eager(SPREADS["layer_norm"], mixed(12, 33, torch.float64))


def test_of_rows_that_no_cache_holds():
    long = mixed(4, 40_000, torch.float32)
    for name in ("var_mean", "layer_norm"):
        assert_like_eager(SPREADS[name], long)
    assert_like_eager(lambda x: aten.var_mean.correction(x, [1]), mixed(3, 80_000, torch.float32)[2:])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", [torch.contiguous_format, LAST], ids=str)
@pytest.mark.parametrize("length", [6, 20_000])
def test_of_groups(format, length):
    pixels = length
    groups = lambda x: aten.native_group_norm(x, None, None, 4, 8, pixels, 4, 1e-5)  # noqa: E731 - one expression
    assert_like_eager(groups, image(torch.float32, format, length))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", [12, 40_000])
def test_of_channels(length):
    norm = lambda x: aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)  # noqa: E731 - one expression
    assert_like_eager(norm, channels(torch.float32, length))

    def updated(x: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor) -> Any:
        return aten._native_batch_norm_legit_functional(x, None, None, mean, spread, True, 0.1, 1e-5)[3:]

    assert_like_eager(updated, channels(torch.float32, length), torch.zeros(16), torch.ones(16))
