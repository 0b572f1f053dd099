"""The softmax family against eager and float64."""

from __future__ import annotations

import math

import pytest
import torch

aten = torch.ops.aten
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
CASES = [*((dtype, False) for dtype in FLOATING), (torch.float32, True)]
FORWARDS = [
    aten._softmax.default,
    aten._log_softmax.default,
    lambda x, dim, _: aten._safe_softmax(x, dim),
    lambda x, dim, _: aten.softmax.int(x, dim),
    lambda x, dim, _: aten.log_softmax.int(x, dim),
    lambda x, dim, _: aten.logsumexp(x, [dim]),
    lambda x, dim, _: aten.logsumexp(x, [dim], True),
]
BACKWARDS = [aten._softmax_backward_data.default, aten._log_softmax_backward_data.default]


def values(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Random numbers, some of them far out."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).mul(4).to(dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
def test_forward(check_lowering, dtype, dynamic):
    for dim in (-1, 0, 1):
        for function in FORWARDS:
            check_lowering(lambda x, f=function, d=dim: f(x, d, False), [values(4, 5, 3, dtype=dtype)], dynamic=dynamic)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "dynamic"), CASES)
def test_backward(check_lowering, dtype, dynamic):
    for dim in (-1, 0):
        for function, forward in zip(BACKWARDS, FORWARDS, strict=False):
            grad, output = values(4, 5, 3, dtype=dtype, seed=1), forward(values(4, 5, 3, dtype=dtype), dim, False)
            call = lambda g, y, f=function, d=dim: f(g, y, d, dtype)  # noqa: E731 - one expression
            check_lowering(call, [grad, output], dynamic=dynamic)


def test_wider_type(check_lowering):
    x = values(4, 7, dtype=torch.bfloat16)
    for function in (aten.softmax.int, aten.log_softmax.int, aten._safe_softmax.default):
        check_lowering(lambda x, f=function: f(x, -1, torch.float32), [x])
        check_lowering(lambda x, f=function: f(x, -1, torch.float32), [torch.arange(12).view(3, 4)])
    check_lowering(lambda x: aten.logsumexp(x, [0]), [torch.arange(12).view(3, 4)])


def test_strides_and_scalars(check_lowering):
    for x in (values(5, 4, 3).permute(2, 0, 1), values(4, 1, 3).expand(4, 6, 3), values(8, 6)[::2, 1::2]):
        for function in FORWARDS:
            check_lowering(lambda x, f=function: f(x, 1, False), [x])
    for function in FORWARDS[:5]:
        check_lowering(lambda x, f=function: f(x, 0, False), [values()])
        check_lowering(lambda x, f=function: f(x, 1, False), [values(4, 1)])


def test_masked_rows(check_lowering):
    x = values(4, 6)
    x[0, 2] = x[1] = -math.inf
    x[2, 3] = math.inf
    x[3, 0] = math.nan
    for function in FORWARDS:
        check_lowering(lambda x, f=function: f(x, -1, False), [x])
        check_lowering(lambda x, f=function: f(x, 0, False), [x])


def test_nothing(check_lowering):
    for sizes in ((0, 4), (4, 0), (0, 0)):
        for function in FORWARDS:
            check_lowering(lambda x, f=function: f(x, -1, False), [values(*sizes)])
        for function in BACKWARDS:
            check_lowering(lambda g, y, f=function: f(g, y, -1, torch.float32), [values(*sizes), values(*sizes)])


def test_large_values_do_not_overflow(check_lowering):
    for function in FORWARDS:
        check_lowering(lambda x, f=function: f(x, -1, False), [values(4, 300) * 100 + 5000])
