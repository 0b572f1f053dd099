"""Tensors of one element that tracing lifted out of the code become numbers again where results stay what they were."""

from __future__ import annotations

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


def test_operators_on_the_same_device_keep_their_tensor() -> None:
    count, module = _check(lambda value: value * torch.tensor(2.5, dtype=torch.float64), torch.ones(3))
    assert count == 0
    assert aten.lift_fresh_copy.default in _targets(module)


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
    module = make_fx(lambda x: x * torch.tensor(number), tracing_mode="real")(value)
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
