"""Tensors of one element that tracing lifted out of the code become numbers again where results stay what they were."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.identity import Captured
from mixbackend.graph.lifted_scalars import write_lifted_numbers

aten = torch.ops.aten


def _traced(function, *inputs):
    module = make_fx(torch.func.functionalize(function))(*inputs)
    module.graph.eliminate_dead_code()
    return module


def _targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def _check(function, *inputs):
    """Rewrites; nothing of the result may differ."""
    module = _traced(function, *inputs)
    expected = module(*inputs)
    count = write_lifted_numbers(module)
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*inputs), expected, rtol=0.0, atol=0.0, equal_nan=True)
    return count, module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_masks_that_are_written_row_by_row_hold_no_tensors(dtype: torch.dtype) -> None:
    def mask(value):
        made = value.new_zeros(4, 4)
        for place in range(3):
            made[place:, 1:-1] = place
        return made

    count, module = _check(mask, torch.ones(2, dtype=dtype))
    assert count == 3
    assert aten.lift_fresh_copy.default not in _targets(module)
    assert not module.graph.find_nodes(op="get_attr")


def test_tensors_of_one_element_that_are_copied_become_numbers() -> None:
    module = _traced(lambda value: aten.fill(value, torch.tensor(2.5)), torch.ones(3))
    (node,) = module.graph.find_nodes(op="call_function", target=aten.fill.Tensor)
    node.target = aten.copy.default
    assert write_lifted_numbers(module) == 1
    module.recompile()
    assert aten.fill.Scalar in _targets(module)
    assert torch.equal(module(torch.ones(3)), torch.full((3,), 2.5))


@pytest.mark.parametrize(
    ("dtype", "held"), [(torch.float16, 1e9), (torch.int32, 2.5), (torch.int8, 300.0), (torch.int64, float("inf"))]
)
def test_numbers_that_the_memory_has_no_value_for_stay_tensors(dtype: torch.dtype, held: float) -> None:
    module = _traced(lambda value: aten.fill(value, torch.tensor(held)), torch.ones(3, dtype=dtype))
    assert write_lifted_numbers(module) == 0
    assert aten.fill.Tensor in _targets(module)


OPERATORS = ("add", "sub", "mul", "true_divide", "eq", "ne", "lt", "le", "gt", "ge")
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


@pytest.mark.parametrize("held", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic_with_numbers_has_the_types_and_bits_of_arithmetic_with_tensors(
    dtype: torch.dtype, held: torch.dtype
) -> None:
    given = (
        (torch.arange(-33, 34) * 1.37).abs().to(dtype)
        if dtype == torch.uint8
        else (torch.arange(-33, 34) * 1.37).to(dtype)
    )
    for name in OPERATORS:
        if name == "sub" and torch.bool in (dtype, held):
            continue
        for value, number in itertools.product((given, given[40]), (3, 0.1, -7.3, 300)):
            lifted = torch.tensor(number, dtype=torch.float64).to(held)
            _check(_both_ways(getattr(torch, name), lifted), value)


def _both_ways(operator, lifted):
    return lambda value: (operator(value, aten.lift_fresh_copy(lifted)), operator(aten.lift_fresh_copy(lifted), value))


@pytest.mark.parametrize(
    ("dtype", "held", "written"),
    [
        (torch.float32, torch.float64, True),
        (torch.bfloat16, torch.float32, True),
        (torch.float32, torch.int64, True),
        (torch.int64, torch.int32, True),
        (torch.int32, torch.float32, True),
        (torch.int32, torch.float64, False),
        (torch.int32, torch.bfloat16, False),
        (torch.bool, torch.int32, False),
        (torch.float32, torch.bool, False),
    ],
)
def test_operators_take_numbers_where_types_stay(dtype: torch.dtype, held: torch.dtype, written: bool) -> None:
    count, module = _check(lambda value: value * torch.tensor(2, dtype=held), torch.ones(3, dtype=dtype))
    assert count == written
    assert (aten.lift_fresh_copy.default in _targets(module)) is not written


def test_tensors_that_decide_on_the_type_stay() -> None:
    scalar = torch.ones((), dtype=torch.bfloat16)
    assert _check(lambda value: value / torch.tensor(3.0), scalar)[0] == 0
    assert _check(lambda value: value / torch.tensor(3.0, dtype=torch.bfloat16), scalar)[0] == 1


def test_powers_keep_their_tensor() -> None:
    assert _check(lambda value: value ** torch.tensor(0.5), torch.rand(64))[0] == 0


@pytest.mark.parametrize("held", [-100.0, 3.0, float("-inf")])
def test_masks_fill_with_numbers(held: float) -> None:
    value, mask = torch.ones(4, dtype=torch.bfloat16), torch.tensor([True, False, True, False])
    count, module = _check(lambda x, chosen: x.masked_fill(chosen, torch.tensor(held)), value, mask)
    assert count == 1 and aten.masked_fill.Scalar in _targets(module)


def test_numbers_in_memory_of_the_processor_become_operands() -> None:
    count, module = _check(lambda value: torch.full((), 0.1, dtype=torch.bfloat16) * value, torch.ones(3))
    assert count == 1 and _targets(module) == [aten.mul.Tensor]


def test_tensors_with_several_elements_stay() -> None:
    count, _ = _check(lambda value: aten.copy(value, torch.tensor([1.0, 2.0])), torch.ones(2))
    assert count == 0


def test_tensors_that_are_viewed_stay() -> None:
    count, _ = _check(lambda value: aten.fill(value, torch.tensor(2.0).unsqueeze(0)[0]), torch.ones(2))
    assert count == 0


@pytest.mark.parametrize(("number", "moved"), [(-100.0, True), (0.1, False), (float("nan"), True), (True, True)])
def test_operators_of_a_gpu_read_tensors_that_are_made_there(number: float, moved: bool) -> None:
    with fresh_fake_mode():
        value = torch.empty(4, device="cuda", dtype=torch.float16)
    module = make_fx(lambda x: torch.maximum(x, torch.tensor(number)), tracing_mode="real")(value)
    assert write_lifted_numbers(module) == moved
    devices = [node.meta["val"].device.type for node in module.graph.nodes if node.op == "call_function"]
    assert set(devices) == ({"cuda"} if moved else {"cpu", "cuda"})


def _indexed_on_a_gpu():
    with fresh_fake_mode():
        value = torch.empty(4, device="cuda")
    return make_fx(lambda x: aten.index(x, [torch.tensor([2, 0])]), tracing_mode="real")(value)


def test_positions_go_to_the_device_of_what_they_index() -> None:
    module = _indexed_on_a_gpu()
    assert write_lifted_numbers(module) == 1
    (index,) = module.graph.find_nodes(op="call_function", target=aten.index.Tensor)
    (source,) = index.args[1]
    assert source.target is aten._to_copy.default and source.meta["val"].device.type == "cuda"


def test_masks_that_index_stay_where_they_are() -> None:
    module = _indexed_on_a_gpu()
    for node in module.graph.nodes:
        if node.target in (aten.lift_fresh_copy.default, aten.detach.default):
            node.meta["val"] = torch.empty(4, dtype=torch.bool)
    assert write_lifted_numbers(module) == 0


def test_positions_on_the_same_device_stay() -> None:
    count, _ = _check(lambda value: aten.index(value, [torch.tensor([1, 0])]), torch.randn(3))
    assert count == 0


def test_graphs_whose_lifted_numbers_are_written_have_a_text() -> None:
    def mask(value):
        made = value.new_zeros(4, 4)
        made[1:, 2:] = 3
        return (made,)

    module = make_fx(torch.func.functionalize(mask), tracing_mode="fake")(torch.ones(2))
    captured = Captured(module, "inference", {}, "inference-1")
    assert "constant(" not in captured.identity.text
    assert "aten.fill.Scalar" in captured.identity.text
