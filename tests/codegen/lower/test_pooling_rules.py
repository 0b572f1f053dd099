"""Pooling and its gradients against eager."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.codegen.ir.stages import Reduce, Scatter
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.contracts import Unsupported
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
HALF = [torch.bfloat16, torch.float16]

# kernel, stride, padding, dilation, ceil_mode
WINDOWS = [
    ((2, 2), (), (0, 0), (1, 1), False),
    ((3, 3), (2, 2), (1, 1), (1, 1), False),
    ((3, 3), (1, 1), (1, 1), (1, 1), False),
    ((3, 2), (2, 3), (1, 0), (1, 2), True),
    ((3, 3), (2, 2), (1, 1), (2, 2), True),
    ((2, 2), (3, 3), (0, 0), (1, 1), True),
    ((2, 2), (2, 2), (1, 1), (1, 1), True),
    ((6, 7), (2, 1), (3, 3), (1, 1), False),
]
WIDE = ((6, 6), (1, 1), (3, 3), (1, 1), False)


def _values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return (torch.randn(sizes, generator=generator) * 3).to(dtype)


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _stages(function, inputs, kind) -> int:
    return sum(isinstance(stage, kind) for stage in lower_region(trace_region(function, inputs)).stages)


def _cases(*dtypes: torch.dtype) -> list:
    """Every window in float32, one of them in every type."""
    return [*((torch.float32, window) for window in WINDOWS), *((dtype, WINDOWS[3]) for dtype in dtypes)]


@pytest.mark.parametrize(("dtype", "arguments"), _cases(*HALF, torch.float64, torch.int64, torch.int32))
def test_max_pool(check_lowering, dtype, arguments):
    # Rounded values: many windows have their maximum several times.
    x = _values(2, 3, 9, 11, dtype=dtype).round()
    check_lowering(lambda x: aten.max_pool2d_with_indices(x, *arguments), [x])


@pytest.mark.parametrize("arguments", WINDOWS)
def test_max_pool_of_nan_and_infinity(check_lowering, arguments):
    x = _values(1, 2, 9, 11)
    x[:, 0].bernoulli_(0.2, generator=torch.Generator().manual_seed(0)).div_(0.0)
    x[:, 1] = float("-inf")
    x[:, 1, 3, 3:5] = float("nan")
    check_lowering(lambda x: aten.max_pool2d_with_indices(x, *arguments), [x])


@pytest.mark.parametrize("arguments", [WINDOWS[1], WINDOWS[3], WIDE])
def test_max_pool_of_other_layouts_and_sizes(check_lowering, arguments):
    pool = lambda x: aten.max_pool2d_with_indices(x, *arguments)  # noqa: E731
    check_lowering(pool, [_channels_last(_values(2, 3, 9, 8))])
    check_lowering(pool, [_values(3, 9, 8)])
    check_lowering(pool, [_values(2, 3, 8, 9).transpose(2, 3)])
    check_lowering(pool, [_values(0, 3, 9, 8)])
    check_lowering(pool, [_values(2, 3, 9, 8)], dynamic=True)


def test_large_windows_are_reductions():
    x = _values(1, 2, 9, 9)
    assert _stages(lambda x: aten.max_pool2d_with_indices(x, *WINDOWS[1]), [x], Reduce) == 0
    assert _stages(lambda x: aten.max_pool2d_with_indices(x, *WIDE), [x], Reduce) == 2


@pytest.mark.parametrize(("dtype", "arguments"), _cases(*HALF, torch.float64))
def test_gradient_of_max_pool(check_lowering, dtype, arguments):
    x = _values(2, 3, 9, 11, dtype=dtype).round()
    values, indices = aten.max_pool2d_with_indices(x, *arguments)
    gradient = _values(*values.shape, dtype=dtype)
    backward = lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *arguments, i)  # noqa: E731
    check_lowering(backward, [gradient, x, indices])
    check_lowering(backward, [_channels_last(each) for each in (gradient, x, indices)])


@pytest.mark.parametrize(
    ("arguments", "has_rows", "scatters"),
    [
        (WIDE, True, 1),
        (WIDE, False, 1),
        (WINDOWS[2], True, 1),
        (WINDOWS[2], False, 0),
        (WINDOWS[0], True, 0),
    ],
)
def test_gradient_of_max_pool_scatters_where_windows_overlap(check_lowering, arguments, has_rows, scatters):
    x = _values(2, 3, 9, 9)
    values, indices = aten.max_pool2d_with_indices(x, *arguments)
    backward = lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *arguments, i)  # noqa: E731
    inputs = [_values(*values.shape), x, indices]
    inputs = inputs if has_rows else [_channels_last(each) for each in inputs]
    check_lowering(backward, inputs)
    assert _stages(backward, inputs, Scatter) == scatters


def test_gradient_of_max_pool_with_symbolic_sizes(check_lowering):
    x = _values(2, 3, 9, 8)
    values, indices = aten.max_pool2d_with_indices(x, *WINDOWS[1])
    backward = aten.max_pool2d_with_indices_backward
    check_lowering(lambda g, x, i: backward(g, x, *WINDOWS[1], i), [_values(*values.shape), x, indices], dynamic=True)


@pytest.mark.parametrize("arguments", [(2,), ((2, 3, 2), (2, 1, 2), (1, 1, 0), (1, 1, 2), True), (4, 2, 2)])
def test_max_pool_in_three_dimensions(check_lowering, arguments):
    x = _values(1, 2, 5, 6, 7).round()
    kernel, stride, padding, dilation, ceil_mode = (*arguments, *((), 0, 1, False)[len(arguments) - 1 :])
    window = [[a] * 3 if isinstance(a, int) else a for a in (kernel, stride, padding, dilation)]
    check_lowering(lambda x: aten.max_pool3d_with_indices(x, *window, ceil_mode), [x])
    values, indices = aten.max_pool3d_with_indices(x, *window, ceil_mode)
    backward = aten.max_pool3d_with_indices_backward
    check_lowering(lambda g, x, i: backward(g, x, *window, ceil_mode, i), [_values(*values.shape), x, indices])


def test_max_pool_in_one_dimension(check_lowering):
    check_lowering(lambda x: torch.nn.functional.max_pool1d(x, 3, 2, 1), [_values(2, 3, 9)])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("output", [(3, 3), (1, 1), (4, 5), (8, 10), (7, 11)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adaptive_max_pool_and_its_gradient(check_lowering, output, dtype):
    x = _values(2, 3, 8, 10, dtype=dtype).round()
    x[0, 0, 2, 3:5] = float("nan")
    x[0, 1] = float("-inf")
    check_lowering(lambda x: aten.adaptive_max_pool2d(x, output), [x])
    values, indices = aten.adaptive_max_pool2d(x, output)
    gradient = _values(*values.shape, dtype=dtype)
    check_lowering(lambda g, x, i: aten.adaptive_max_pool2d_backward(g, x, i), [gradient, x, indices])


def test_adaptive_pooling_in_three_dimensions(check_lowering):
    x = _values(2, 2, 5, 6, 4)
    check_lowering(lambda x: aten.adaptive_max_pool3d(x, (2, 4, 4)), [x])
    values, indices = aten.adaptive_max_pool3d(x, (2, 4, 4))
    check_lowering(lambda g, x, i: aten.adaptive_max_pool3d_backward(g, x, i), [values, x, indices])
    check_lowering(lambda x: aten._adaptive_avg_pool3d(x, (2, 4, 4)), [x])
    check_lowering(lambda g, x: aten._adaptive_avg_pool3d_backward(g, x), [values, x])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(("dtype", "arguments"), _cases(*HALF, torch.float64, torch.int64))
def test_avg_pool(check_lowering, dtype, include, arguments):
    kernel, stride, padding, _, ceil_mode = arguments
    x = _values(2, 3, 9, 11, dtype=dtype)
    check_lowering(lambda x: aten.avg_pool2d(x, kernel, stride, padding, ceil_mode, include), [x])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(("dtype", "arguments"), [*_cases(*HALF, torch.float64), (torch.float32, WIDE)])
def test_gradient_of_avg_pool(check_lowering, dtype, include, arguments):
    kernel, stride, padding, _, ceil_mode = arguments
    x = _values(2, 3, 9, 11, dtype=dtype)
    gradient = _values(*aten.avg_pool2d(x, kernel, stride, padding, ceil_mode, include).shape, dtype=dtype)
    backward = aten.avg_pool2d_backward
    check_lowering(lambda g, x: backward(g, x, kernel, stride, padding, ceil_mode, include, None), [gradient, x])


def test_avg_pool_with_its_own_divisor_other_layouts_and_sizes(check_lowering):
    check_lowering(lambda x: aten.avg_pool2d(x, (3, 3), (2, 2), (1, 1), True, False, 5), [_values(2, 3, 8, 7)])
    check_lowering(lambda x: aten.avg_pool2d(x, (2, 2)), [_channels_last(_values(2, 3, 8, 7))])
    check_lowering(lambda x: aten.avg_pool2d(x, (2, 2)), [_values(3, 8, 7).transpose(1, 2)])
    check_lowering(lambda x: aten.avg_pool2d(x, (2, 2)), [_values(0, 3, 8, 7)])
    check_lowering(lambda x: torch.nn.functional.avg_pool1d(x, 3, 2, 1), [_values(2, 3, 9)])
    check_lowering(lambda x: aten.avg_pool3d(x, (2, 3, 2), (2, 2, 2), (1, 1, 0), True, False), [_values(2, 5, 6, 7)])
    x, g = _values(2, 3, 5, 6, 7), _values(2, 3, 2, 3, 3)
    check_lowering(
        lambda g, x: aten.avg_pool3d_backward(g, x, (2, 2, 2), (2, 2, 2), (0, 0, 0), False, True, None), [g, x]
    )


@pytest.mark.parametrize("include", [False, True])
def test_avg_pool_with_symbolic_sizes(check_lowering, include):
    x = _values(2, 3, 9, 8)
    check_lowering(lambda x: aten.avg_pool2d(x, (3, 3), (2, 2), (1, 1), True, include), [x], dynamic=True)
    check_lowering(
        lambda g, x: aten.avg_pool2d_backward(g, x, (3, 3), (2, 2), (1, 1), False, include, None),
        [_values(2, 3, 5, 4), x],
        dynamic=True,
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("output", [(3, 3), (1, 1), (4, 5), (8, 10), (7, 11), (16, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adaptive_avg_pool_and_its_gradient(check_lowering, output, dtype):
    x = _values(2, 3, 8, 10, dtype=dtype)
    check_lowering(lambda x: aten._adaptive_avg_pool2d(x, output), [x])
    gradient = _values(2, 3, *output, dtype=dtype)
    check_lowering(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), [gradient, x])


def test_adaptive_avg_pool_with_symbolic_sizes(check_lowering):
    x = _values(2, 3, 8, 10)
    check_lowering(lambda x: aten._adaptive_avg_pool2d(x, (3, 4)), [x], dynamic=True)
    check_lowering(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), [_values(2, 3, 3, 4), x], dynamic=True)


def test_max_unpool(check_lowering):
    values, indices = aten.max_pool2d_with_indices(_values(2, 3, 8, 10), (2, 2))
    check_lowering(lambda v, i: aten.max_unpool2d(v, i, (8, 10)), [values, indices])
    values, indices = aten.max_pool3d_with_indices(_values(2, 4, 8, 10), (2, 2, 2))
    check_lowering(lambda v, i: aten.max_unpool3d(v, i, (4, 8, 10), (2, 2, 2), (0, 0, 0)), [values, indices])


def test_gradients_of_integers_are_refused():
    function = lambda g, x: aten.avg_pool2d_backward(g, x, (2, 2), (2, 2), (0, 0), False, True, None)  # noqa: E731
    (view,) = trace_region(function, [torch.ones(1, 1, 2, 2).long(), torch.ones(1, 1, 4, 4).long()]).views
    verdict = judge_op(view)
    assert isinstance(verdict, Unsupported)
    assert verdict.code == "dtype"
