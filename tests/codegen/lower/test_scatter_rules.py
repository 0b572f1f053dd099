"""Writing at run-time places: scatter, index_add, their reductions and the gradient of embedding against eager."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.checks import without_checks
from mixbackend.contracts import InputRangeError, Unsupported
from mixbackend.graph.trace import trace_region

HALF = [torch.bfloat16, torch.float16]
DTYPES = [torch.float32, *HALF, torch.int64]


def _values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return (torch.randn(sizes, generator=generator) * 3).to(dtype)


def _positions(high: int, *sizes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(high + len(sizes))
    return torch.randint(0, high, sizes, generator=generator)


def _distinct(high: int, *sizes: int, dim: int = 0) -> torch.Tensor:
    """Positions that differ along a dimension: plain scatter has one result for them only."""
    generator = torch.Generator().manual_seed(high)
    return (
        torch.rand((*sizes[:dim], high, *sizes[dim + 1 :]), generator=generator).argsort(dim).narrow(dim, 0, sizes[dim])
    )


@pytest.mark.parametrize("shape", [(0,), (1, 0), (0, 2, 3)])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax"])
def test_an_index_without_elements_may_have_any_rank(check_lowering, shape, reduce):
    x, index, source = _values(4, 3), torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
    check_lowering(lambda x, i: x.gather(0, i), [x, index])
    check_lowering(lambda x, i: x.scatter(0, i, 2.0), [x, index])
    check_lowering(lambda x, i, s: x.scatter(1, i, s), [x, index, source])
    check_lowering(lambda x, i, s: x.scatter_add(0, i, s), [x, index, source])
    check_lowering(lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=False), [x, index, source])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter(check_lowering, dtype, dim):
    x = _values(6, 4, 5, dtype=dtype).transpose(0, 1)
    i = _distinct(x.shape[dim], 3, 3, 3, dim=dim % 3)
    check_lowering(lambda x, i, v: x.scatter(dim, i, v), [x, i, _values(4, 3, 4, dtype=dtype)])
    check_lowering(lambda x, i: x.scatter(dim, i, 1), [x, i])


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_add_of_duplicates(check_lowering, dtype):
    inputs = [_values(5, 3, dtype=dtype), _positions(5, 40, 2), _values(41, 3, dtype=dtype)]
    check_lowering(lambda x, i, v: x.scatter_add(0, i, v), inputs)


def test_scatter_into_nothing_and_scalars(check_lowering):
    check_lowering(lambda x, i, v: x.scatter_add(0, i, v), [_values(5), _positions(5, 0), _values(0)])
    check_lowering(lambda x, i, v: x.scatter(0, i, v), [torch.tensor(1.0), torch.tensor(0), torch.tensor(2.0)])
    check_lowering(lambda x, i, v: x.index_add(0, i, v), [torch.tensor(1.0), torch.tensor(0), torch.tensor(2.0)])


def test_scatter_with_symbolic_sizes(check_lowering):
    inputs = [_values(5, 3), _positions(5, 7, 2), _values(8, 4)]
    check_lowering(lambda x, i, v: x.scatter_add(0, i, v), inputs, dynamic=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_that_adds_or_multiplies(check_lowering, dtype, reduce):
    x, i = _values(5, 3, dtype=dtype), _positions(5, 9, 3)
    check_lowering(lambda x, i, v: x.scatter(0, i, v, reduce=reduce), [x, i, _values(9, 3, dtype=dtype)])
    check_lowering(lambda x, i: x.scatter(0, i, 2, reduce=reduce), [x, i])


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce_and_index_reduce(check_lowering, dtype, include_self, reduce):
    x, v = _values(7, 3, dtype=dtype), _values(9, 3, dtype=dtype)
    check_lowering(
        lambda x, i, v: x.scatter_reduce(0, i, v, reduce, include_self=include_self), [x, _positions(5, 9, 3), v]
    )
    if reduce != "sum":
        check_lowering(
            lambda x, i, v: x.index_reduce(0, i, v, reduce, include_self=include_self), [x, _positions(5, 9), v]
        )


@pytest.mark.parametrize("reduce", ["amax", "amin", "sum", "prod"])
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_keep_nan_and_infinity(check_lowering, reduce, include_self):
    x = torch.tensor([1.0, float("nan"), float("-inf"), 4.0])
    v = torch.tensor([float("nan"), 2.0, 3.0, float("inf"), 5.0])
    i = torch.tensor([0, 1, 2, 2, 0])
    check_lowering(lambda x, i, v: x.scatter_reduce(0, i, v, reduce, include_self=include_self), [x, i, v])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1, 2, -3])
def test_index_add(check_lowering, dtype, alpha):
    x, v = _values(5, 4, dtype=dtype), _values(5, 9, dtype=dtype)
    check_lowering(lambda x, i, v: x.index_add(1, i, v, alpha=alpha), [x, _positions(4, 9), v])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_index_copy_and_fill(check_lowering, dtype):
    x, i = _values(5, 4, dtype=dtype), torch.tensor([3, 0])
    check_lowering(lambda x, i, v: x.index_copy(1, i, v), [x, i, _values(5, 2, dtype=dtype)])
    check_lowering(lambda x, i: x.index_fill(1, i, 1), [x, i - 2])
    check_lowering(lambda x, i, v: x.index_fill(0, i, v), [x, i, torch.tensor(1, dtype=dtype)])
    check_lowering(lambda x, i: x.index_fill(0, i, 1), [torch.tensor(3, dtype=dtype), torch.tensor([0])])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, v: x.scatter_add(0, i, v),
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax", include_self=False),
        lambda x, i, v: x.scatter_reduce(0, i, v, "mean"),
    ],
)
def test_arithmetic_on_bools_is_refused(function):
    inputs = [_values(5) > 0, _positions(5, 3), _values(3) > 0]
    (view,) = trace_region(function, inputs).views
    verdict = judge_op(view)
    assert isinstance(verdict, Unsupported)
    assert verdict.code == "dtype"


def test_places_out_of_range_write_inside_and_are_told():
    inputs = [torch.zeros(3), torch.tensor([0, 1]), torch.ones(2)]
    graph = lower_region(trace_region(lambda x, i, v: x.scatter_add(0, i, v), inputs))
    inputs = [torch.zeros(3), torch.tensor([-7, 2**40]), torch.ones(2)]
    with pytest.raises(InputRangeError):
        interpret_stages(graph, inputs)
    (result,) = interpret_stages(without_checks(graph), inputs)
    assert result.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_embedding(check_lowering, dtype, index_dtype):
    inputs = [_values(9, 4, dtype=dtype), _positions(9, 2, 3).to(index_dtype)]
    check_lowering(lambda w, i: functional.embedding(i, w, padding_idx=2), inputs)
    check_lowering(lambda w, i: functional.embedding(i, w), [inputs[0], inputs[1][0, 0]])
    check_lowering(lambda w, i: functional.embedding(i, w), inputs, dynamic=True)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("padding", [-1, 0, 3])
def test_embedding_gradient(check_lowering, dtype, padding):
    backward = torch.ops.aten.embedding_dense_backward
    inputs = [_values(4, 30, 5, dtype=dtype), _positions(6, 4, 30)]
    check_lowering(lambda g, i: backward(g, i, 6, padding, False), inputs)
    check_lowering(lambda g, i: backward(g, i, 6, padding, False), [inputs[0], inputs[1].int()], dynamic=True)


def test_embedding_gradient_scaled_by_frequency_is_refused():
    backward = torch.ops.aten.embedding_dense_backward
    (view,) = trace_region(lambda g, i: backward(g, i, 6, -1, True), [_values(4, 5), _positions(6, 4)]).views
    verdict = judge_op(view)
    assert isinstance(verdict, Unsupported)
    assert verdict.code == "argument"
