"""Reading and writing at run-time places: index, gather, take, index_put and masks against eager."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.lower.indexing import index_put
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.checks import without_checks
from mixbackend.contracts import InputRangeError, TensorMeta, Unsupported
from mixbackend.graph.trace import trace_region

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.bool]


def _values(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return (torch.randn(sizes, generator=generator) * 3).to(dtype)


def _positions(high: int, *sizes: int, low: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(high + len(sizes))
    return torch.randint(low, high, sizes, generator=generator, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_of_every_type(check_lowering, dtype):
    check_lowering(lambda x, i: x[i], [_values(5, 3, dtype=dtype), _positions(5, 4, low=-5)])


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, i, j: x[i],
        lambda x, i, j: x[:, i],
        lambda x, i, j: x[i, j],
        lambda x, i, j: x[:, i, j],
        lambda x, i, j: x[i, :, j],
        lambda x, i, j: x[:, i, :, j],
        lambda x, i, j: x[i[:, None], j[None, :]],
        lambda x, i, j: x[:, i[:, None], :, j],
        lambda x, i, j: x[..., j],
        lambda x, i, j: torch.ops.aten.index(x, [i.select(0, 0)]),
        lambda x, i, j: torch.ops.aten.index(x, [None, i.select(0, 0), j]),
    ],
)
def test_index_tensors_stand_where_torch_puts_them(check_lowering, pick):
    inputs = [_values(4, 5, 6, 7).transpose(1, 2), _positions(4, 3, low=-4), _positions(4, 3, low=-4)]
    check_lowering(pick, inputs)


def test_narrow_indices_and_the_unsafe_form(check_lowering):
    narrow = _positions(5, 4, low=-5, dtype=torch.int32)
    check_lowering(lambda x, i: x[i], [_values(5, 3), narrow])
    check_lowering(lambda x, i: torch.ops.aten._unsafe_index(x, [None, i]), [_values(3, 5), narrow])


def test_index_of_computed_values(check_lowering):
    check_lowering(lambda x, i: (x * 2 + 1)[i], [_values(5, 3), _positions(5, 4)])
    check_lowering(lambda i: torch.arange(3, 11)[i], [_positions(8, 4, low=-8)])


def test_index_with_symbolic_sizes(check_lowering):
    check_lowering(lambda x, i: x[:, i, 1:], [_values(4, 5, 6), _positions(5, 7, low=-5)], dynamic=True)


def test_index_of_nothing(check_lowering):
    check_lowering(lambda x, i: x[i], [_values(5, 3), _positions(5, 0)])
    check_lowering(lambda x, i: x[i], [_values(5, 0), _positions(5, 2)])


def test_nothing_to_index_is_refused():
    (view,) = trace_region(lambda x, i: x[i], [_values(0, 3), _positions(5, 0)]).views
    verdict = judge_op(view)
    assert isinstance(verdict, Unsupported)
    assert verdict.code == "declined"


def test_places_out_of_range_stay_inside_and_are_told():
    graph = lower_region(trace_region(lambda x, i: x[i], [_values(5), _positions(5, 4)]))
    inputs = [torch.arange(5.0), torch.tensor([-6, 5, 2**40, -1])]
    with pytest.raises(InputRangeError):
        interpret_stages(graph, inputs)
    (result,) = interpret_stages(without_checks(graph), inputs)
    assert result.tolist() == [0.0, 4.0, 4.0, 4.0]


def test_a_mask_as_index_is_refused():
    x = _values(4)
    (view,) = trace_region(lambda x, m: torch.ops.aten.index(x, [m]), [x, x > 0]).views
    verdict = judge_op(view)
    assert isinstance(verdict, Unsupported)
    assert verdict.code == "data-dependent"


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put(check_lowering, dtype, accumulate):
    inputs = [_values(6, 3, dtype=dtype), torch.tensor([0, -1, 2, 3]), _values(4, 3, dtype=dtype)]
    check_lowering(lambda x, i, v: x.index_put((i,), v, accumulate), inputs)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64])
def test_index_put_adds_up_duplicates(check_lowering, dtype):
    inputs = [_values(3, 4, dtype=dtype), _positions(3, 40, low=-3), _positions(4, 40), _values(40, dtype=dtype)]
    check_lowering(lambda x, i, j, v: x.index_put((i, j), v, True), inputs)


def test_index_put_broadcasts_and_separates(check_lowering):
    x, i, j = _values(4, 5, 6), torch.tensor([[0], [2]]), torch.tensor([1, -1, 0])
    put = torch.ops.aten.index_put
    check_lowering(lambda x, i, j, v: put(x, [i, None, j], v), [x, i, j, _values(5)])
    check_lowering(lambda x, i, j, v: put(x, [None, i, j], v), [x, i, j, _values(4, 1, 3)])
    check_lowering(lambda x, i, v: torch.ops.aten._unsafe_index_put(x, [None, i], v, True), [x, j, _values(3, 6)])
    check_lowering(lambda x, i, v: x.index_put((i,), v), [_values(4).bool(), j, torch.tensor(True)])


def test_one_value_for_a_mask_is_a_selection(check_lowering):
    x, m = _values(4, 5, 3), _values(4, 5) > 0
    check_lowering(lambda x, m, v: x.index_put((m,), v), [x, m, torch.tensor(7.0)])
    check_lowering(lambda x, m, v: x.index_put((m,), v, True), [x, m, _values(1, 3)])
    put = torch.ops.aten.index_put
    check_lowering(lambda x, m, v: put(x, [None, m], v), [x, _values(5, 3) > 0, torch.tensor(2.0)])


def test_a_value_for_every_place_of_a_mask_is_refused():
    lowering = Lowering()
    for name, tensor in (("x", _values(4)), ("m", _values(4) > 0), ("v", _values(2))):
        lowering.input(name, TensorMeta(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device))
    x, m, v = map(lowering.value, "xmv")
    with pytest.raises(RefusedError, match="how many there are"):
        index_put(lowering, x, (m,), v)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_select(check_lowering, dtype):
    x, i = _values(4, 5, dtype=dtype), _positions(4, 6)
    check_lowering(lambda x, i: x.index_select(0, i), [x, i])
    check_lowering(lambda x, i: x.index_select(-1, i), [x, i.int()])


def test_index_select_and_gather_of_scalars(check_lowering):
    check_lowering(lambda x, i: x.index_select(0, i), [torch.tensor(3.0), torch.tensor([0])])
    check_lowering(lambda x, i: x.index_select(0, i), [_values(4), torch.tensor(2)])
    check_lowering(lambda x, i: x.gather(0, i), [torch.tensor(3.0), torch.tensor(0)])
    check_lowering(lambda x, i: x.gather(0, i), [torch.tensor(3.0), torch.tensor([0])])
    check_lowering(lambda x, i: x.gather(0, i), [_values(4), torch.tensor(2)])


@pytest.mark.sampled(11)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather(check_lowering, dtype, dim):
    check_lowering(
        lambda x, i: x.gather(dim, i), [_values(4, 5, 6, dtype=dtype).transpose(0, 2), _positions(4, 3, 5, 2)]
    )


def test_gather_with_symbolic_sizes(check_lowering):
    check_lowering(lambda x, i: x.gather(1, i), [_values(4, 5), _positions(5, 3, 9)], dynamic=True)


def test_take_along_dimension(check_lowering):
    check_lowering(lambda x, i: torch.take_along_dim(x, i, 1), [_values(3, 4, 2), _positions(4, 3, 2, 1)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_take_and_put(check_lowering, dtype):
    x, i = _values(4, 5, dtype=dtype).t(), _positions(20, 3, 2, low=-20)
    check_lowering(lambda x, i: x.take(i), [x, i])
    check_lowering(lambda x, i, v: x.put(i, v), [x, torch.tensor([[1, -2], [3, 19]]), _values(2, 2, dtype=dtype)])
    check_lowering(lambda x, i, v: x.put(i, v, True), [x, _positions(20, 60, low=-20), _values(60, dtype=dtype)])


def test_masked_scatter(check_lowering):
    x, m = _values(3, 4), _values(3, 4) > 0
    check_lowering(lambda x, m, v: x.masked_scatter(m, v), [x, m, _values(5, 4)])
    check_lowering(lambda x, m, v: x.masked_scatter(m, v), [x, m[:1], _values(20)])
    check_lowering(lambda x, m, v: x.masked_scatter(m, v), [x.t(), torch.ones(4, 3, dtype=torch.bool), _values(12)])
