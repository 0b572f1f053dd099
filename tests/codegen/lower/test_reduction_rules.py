"""Reductions against eager and float64: types, strides, empty and single dimensions, NaN, symbolic sizes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.contracts import Supported, Unsupported
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGER = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


def values(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Numbers of a type, ties among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=generator).mul(3).round(decimals=1).to(dtype)


def odd_strides(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Transposed, broadcast, stepped, and a scalar among them."""
    return [
        values(5, 3, 4, dtype=dtype).permute(2, 0, 1),
        values(4, 1, 3, dtype=dtype).expand(4, 5, 3),
        values(8, 5, 6, dtype=dtype)[::2, :, 1::2],
    ]


SUMS = [
    lambda x: aten.sum(x),
    lambda x: aten.sum.dim_IntList(x, [1]),
    lambda x: aten.sum.dim_IntList(x, [0, -1], True),
    lambda x: aten.sum.dim_IntList(x, []),
    lambda x: aten.sum.dim_IntList(x, None, True),
    lambda x: aten.sum(x, dtype=torch.float64),
    lambda x: aten.prod(x),
    lambda x: aten.prod.dim_int(x, -1, True),
    lambda x: aten.nansum(x, [1]),
    lambda x: aten.count_nonzero(x),
    lambda x: aten.count_nonzero.dim_IntList(x, [0, 2]),
]
MEANS = [
    lambda x: aten.mean(x),
    lambda x: aten.mean.dim(x, [0]),
    lambda x: aten.mean.dim(x, [1, 2], True),
    lambda x: aten.mean.dim(x, None),
]
TRUTHS = [
    lambda x: aten.any(x),
    lambda x: aten.any.dim(x, 1),
    lambda x: aten.any.dims(x, [0, 2], True),
    lambda x: aten.any.dims(x, []),
    lambda x: aten.all(x),
    lambda x: aten.all.dim(x, -1, True),
    lambda x: aten.all.dims(x, None),
]
EXTREMES = [
    lambda x: aten.amax(x, [0, 2]),
    lambda x: aten.amin(x, [], True),
    lambda x: aten.max(x),
    lambda x: aten.min(x),
    lambda x: aten.max.dim(x, 1),
    lambda x: aten.min.dim(x, -1, True),
    lambda x: aten.aminmax(x, dim=1),
    lambda x: aten.aminmax(x, keepdim=True),
]
POSITIONS = [
    lambda x: aten.argmax(x),
    lambda x: aten.argmin(x, None, True),
    lambda x: aten.argmax(x, 1),
    lambda x: aten.argmin(x, -1, True),
]
SPREADS = [
    lambda x: aten.var.correction(x),
    lambda x: aten.var.correction(x, [1], correction=0),
    lambda x: aten.std.correction(x, [0, 2], correction=1, keepdim=True),
    lambda x: aten.std.correction(x, [-1], correction=0.5),
    lambda x: aten.var_mean.correction(x, [1, 2], correction=0, keepdim=True),
    lambda x: aten.std_mean.correction(x, [0]),
]
NORMS = [
    *(lambda x, order=order: aten.linalg_vector_norm(x, order, [1]) for order in (0, 1, 2, 3, -1, 0.5)),
    lambda x: aten.linalg_vector_norm(x, math.inf),
    lambda x: aten.linalg_vector_norm(x, -math.inf, [0, 2], True),
    lambda x: aten.norm.Scalar(x),
    lambda x: aten.norm.ScalarOpt_dim(x, 2, [1], True),
    lambda x: aten.norm.ScalarOpt_dim(x, None, [-1]),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FLOATING)
def test_floating(check_lowering, dtype):
    x = values(4, 5, 3, dtype=dtype)
    for function in SUMS + MEANS + TRUTHS + EXTREMES + POSITIONS + SPREADS + NORMS:
        check_lowering(function, [x])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", INTEGER)
def test_integers(check_lowering, dtype):
    x = values(4, 5, 3, dtype=dtype)
    has_positions = dtype != torch.bool
    for function in SUMS + TRUTHS + EXTREMES + (POSITIONS if has_positions else []):
        check_lowering(function, [x])
    check_lowering(lambda x: aten.mean(x, dtype=torch.float32), [x])


def test_strides(check_lowering):
    for x in odd_strides():
        for function in SUMS + MEANS + EXTREMES + POSITIONS + SPREADS:
            check_lowering(function, [x])


def test_symbolic_sizes(check_lowering):
    x = values(4, 5, 3)
    for function in SUMS + MEANS + TRUTHS + EXTREMES + POSITIONS + SPREADS + NORMS:
        check_lowering(function, [x], dynamic=True)
    # A slice's size, s - 1, is known to be positive.
    check_lowering(lambda x: aten.amax(x[1:], [0]), [x], dynamic=True)


def test_scalars_and_single_dimensions(check_lowering):
    scalar = values()
    for function in (
        lambda x: aten.sum.dim_IntList(x, [0]),
        lambda x: aten.amax(x, [-1], True),
        lambda x: aten.max.dim(x, 0),
        lambda x: aten.argmin(x, 0),
        lambda x: aten.mean(x),
        lambda x: aten.var_mean.correction(x, None, correction=0),
        lambda x: aten.any(x),
    ):
        check_lowering(function, [scalar])
    single = values(4, 1, 3)
    graphs = [check_lowering(function, [single]) for function in SUMS + MEANS + EXTREMES + POSITIONS + SPREADS]
    assert all(all(loop.size != 1 for loop in _reduced(graph)) for graph in graphs)


def _reduced(graph):
    return [loop for stage in graph.stages for loop in getattr(stage, "reduced", ())]


def test_nothing(check_lowering):
    for sizes in ((0, 5, 3), (4, 0, 3), (0, 0, 3)):
        for function in SUMS + MEANS + TRUTHS + SPREADS[:4]:
            check_lowering(function, [values(*sizes)])
    for function in (lambda x: aten.amax(x, [1]), lambda x: aten.max.dim(x, 2), lambda x: aten.argmin(x, 1)):
        check_lowering(function, [values(0, 5, 3)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_special_values(check_lowering, number):
    x = values(4, 5, 3)
    x[1, 2, 0] = x[1, 3, 0] = x[2, 2, 2] = number
    for function in SUMS + MEANS + TRUTHS + EXTREMES + POSITIONS + NORMS:
        check_lowering(function, [x])
    for function in SPREADS:
        check_lowering(function, [x])
        check_lowering(function, [x[:, 2:3, :1].clone()])


def test_variance_of_large_values_is_as_exact_as_eagers(check_lowering):
    check_lowering(lambda x: aten.var_mean.correction(x, [1]), [values(8, 5000) + 1000])


def test_more_correction_than_values(check_lowering):
    for correction in (5, 6):
        for dynamic in (False, True):
            call = lambda x, c=correction: aten.var.correction(x, [1], correction=c)  # noqa: E731
            check_lowering(call, [values(4, 5, 3)], dynamic=dynamic)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.amax(x, [0]),
        lambda x: aten.max.dim(x, 0),
        lambda x: aten.argmin(x),
        lambda x: aten.linalg_vector_norm(x, math.inf),
        lambda x: aten.var.correction(x, [0], correction=-1),
        lambda x: aten._softmax(x, 0, False),
        lambda x: aten._log_softmax(x, 0, False),
        lambda x: aten._safe_softmax(x, 0),
        lambda x: aten.logsumexp(x, [0]),
        lambda x: aten.native_layer_norm(x, x.shape, None, None, 1e-5),
        lambda x: aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
    ],
)
def test_what_has_no_value_over_nothing_is_refused_where_that_may_happen(function):
    view = trace_region(function, [values(4, 3)], dynamic=True).views[0]
    assert judge_op(view) == Supported()
    source = view.inputs[0]
    rows = replace(source.meta.shape[0], lower=0)
    source = replace(source, meta=replace(source.meta, shape=(rows, source.meta.shape[1])))
    verdict = judge_op(replace(view, inputs=(source, *view.inputs[1:])))
    assert isinstance(verdict, Unsupported)
    assert verdict.code == "dynamic-shape"


def test_a_sum_of_type_bool_is_refused(refused):
    assert refused(lambda x: aten.sum(x, dtype=torch.bool), [values(4, dtype=torch.int64)]) == ["dtype"]
