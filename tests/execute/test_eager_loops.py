"""Gradients that eager computes otherwise at NaN with the place of an element are right as either loop has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.contracts import ErrorBudget, Supported
from mixbackend.execute.eager_loops import LOOPS, OF_TWO_MINDS, by_vectors, looped, one_by_one
from mixbackend.execute.verify import check_region
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
ARGUMENTS: dict[Any, Any] = {
    aten.elu_backward.default: lambda g, x: (g, 1.0, 1.0, 1.0, False, x),
    aten.hardswish_backward.default: lambda g, x: (g, x),
    aten.hardtanh_backward.default: lambda g, x: (g, x, -1.0, 1.0),
    aten.hardshrink_backward.default: lambda g, x: (g, x, 0.5),
    aten.softshrink_backward.default: lambda g, x: (g, x, 0.5),
    aten.logit_backward.default: lambda g, x: (g, x, 0.1),
}
BUDGET = ErrorBudget(factor=4.0, floor=64.0)


def odd(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.tensor([float("nan"), 0.25, -2.0, float("inf"), -float("inf"), -0.0, 0.75])
    return values.repeat(-(-count // len(values)))[:count].to(dtype)


def equal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left == right) | (left.isnan() & right.isnan())


def test_every_operator_is_here() -> None:
    assert set(ARGUMENTS) == OF_TWO_MINDS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operator", ARGUMENTS, ids=str)
def test_eager_has_one_or_the_other(operator: Any, dtype: torch.dtype) -> None:
    x = odd(141, dtype)
    eager = operator(*ARGUMENTS[operator](torch.ones_like(x), x))
    vectors, elements = (looped(operator, loop, *ARGUMENTS[operator](torch.ones_like(x), x)) for loop in LOOPS)
    assert bool((equal(eager, vectors) | equal(eager, elements)).all())
    apart = ~equal(vectors, elements)
    assert bool(apart.any()) and bool(x[apart].isnan().all()), "they differ at NaN alone"


@pytest.mark.sampled(9)
@pytest.mark.parametrize("operator", ARGUMENTS, ids=str)
@pytest.mark.parametrize("count", [7, 128], ids=str)
@pytest.mark.parametrize("loop", [by_vectors, one_by_one])
def test_what_either_loop_gives_is_right(operator: Any, count: int, loop: Any) -> None:
    x, grad = odd(count), torch.linspace(1.0, 2.0, count)
    region = trace_region(lambda g, x: aten.mul(operator(*ARGUMENTS[operator](g, x)), 2.0), [grad, x])
    result = looped(operator, loop, *ARGUMENTS[operator](grad, x)) * 2.0
    assert check_region(region, [grad, x], [result], BUDGET).right
    assert not check_region(region, [grad, x], [torch.where(x.isnan(), 7.0, result)], BUDGET).right
    assert not check_region(region, [grad, x], [result * 1.01], BUDGET).right


def test_generated_code_is_right_at_what_is_left_over() -> None:
    x, grad = odd(7), torch.ones(7)
    region = trace_region(lambda g, x: aten.elu_backward(g, 1.0, 1.0, 1.0, False, x), [grad, x])
    backend = CodegenBackend()
    assert all(isinstance(backend.judge(view), Supported) for view in region.views)
    assert check_region(region, [grad, x], list(backend.compile(region).run([grad, x])), BUDGET).right
