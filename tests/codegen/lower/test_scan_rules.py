"""Scans against eager and float64."""

from __future__ import annotations

import math

import pytest
import torch

import mixbackend

aten = torch.ops.aten
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGER = (torch.int64, torch.int32, torch.uint8, torch.bool)
SUMS = [
    lambda x, dim: aten.cumsum(x, dim),
    lambda x, dim: aten.cumprod(x, dim),
    lambda x, dim: aten.cumsum(x, dim, dtype=torch.float32),
]
EXTREMES = [aten.cummax.default, aten.cummin.default]
LOGARITHMS = [aten.logcumsumexp.default]


def values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers with ties."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0)).mul(2).round(decimals=1).to(dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("dynamic", [False, True])
def test_floating(check_lowering, dtype, dynamic):
    for function in SUMS + EXTREMES + LOGARITHMS:
        for dim in (0, -1):
            check_lowering(lambda x, f=function, d=dim: f(x, d), [values(6, 5, dtype=dtype)], dynamic=dynamic)


@pytest.mark.parametrize("dtype", INTEGER)
def test_integers(check_lowering, dtype):
    for function in SUMS + EXTREMES:
        check_lowering(lambda x, f=function: f(x, 0), [values(6, 5, dtype=dtype)])


def test_scalars_strides_and_nothing(check_lowering):
    for function in SUMS + EXTREMES + LOGARITHMS:
        for x in (values(), values(5, 6).t(), values(1, 4).expand(3, 4), values(0, 3), values(3, 1)):
            check_lowering(lambda x, f=function: f(x, 0), [x])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_special_values(check_lowering, number):
    x = values(6, 3)
    x[2, 0] = x[4, 0] = x[0, 1] = number
    for function in SUMS + EXTREMES + LOGARITHMS:
        check_lowering(lambda x, f=function: f(x, 0), [x])


def test_long_sums_are_as_exact_as_eagers(check_lowering):
    x = values(2, 50000) + 10
    check_lowering(lambda x: aten.cumsum(x, 1), [x])
    check_lowering(lambda x: aten.logcumsumexp(x, 1), [x])


def test_scans_of_type_bool_are_refused(refused):
    assert refused(lambda x: aten.cumsum(x, 0, dtype=torch.bool), [values(4, dtype=torch.int64)]) == ["dtype"]


def test_a_size_that_torch_guards_to_be_one_is_compiled():
    def function(value: torch.Tensor) -> torch.Tensor:
        half = value[: value.shape[0] // 2]
        return torch.nn.functional.gelu((half + half).cumsum(0))

    value = torch.randn(3, 16)
    backend = mixbackend.auto({"backends": ["codegen", "eager"]})
    compiled = torch.compile(function, backend=backend, dynamic=True)
    torch.testing.assert_close(compiled(value), function(value))
    report = backend.report()
    assert {region.backend for graph in report.graphs for region in graph.plan.regions} == {"codegen"}
    assert not [event for event in report.events if event.kind == "quarantine"]


def test_sizes_that_torch_guards_to_be_equal_are_compiled():
    def function(value: torch.Tensor) -> torch.Tensor:
        normal = torch.nn.functional.rms_norm(value, (value.shape[-1],))
        return torch.nn.functional.glu(normal, -1)

    value = torch.randn(3, 16, requires_grad=True)
    torch._dynamo.mark_dynamic(value, 1)
    backend = mixbackend.auto({"backends": ["codegen", "eager"]})
    compiled = torch.compile(function, backend=backend)
    for size in (16, 24):
        mine = torch.randn(3, size, requires_grad=True)
        eagers = mine.detach().clone().requires_grad_()
        compiled(mine).sum().backward()
        function(eagers).sum().backward()
        torch.testing.assert_close(mine.grad, eagers.grad)
    report = backend.report()
    assert not [event for event in report.events if event.kind in ("quarantine", "fallback", "verify_failed")]
