"""What is written reads back to the same text and the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.contracts import InputRole, OpTag
from mixbackend.contracts.region_text import read_region_text, region_key, write_region_text

from .conftest import trace, write

aten = torch.ops.aten

UNARY = (
    lambda x: aten.relu(x),
    lambda x: aten.gelu(x, approximate="tanh"),
    lambda x: aten.mul(x, 2),
    lambda x: aten.mul(x, -0.0),
    lambda x: aten.add(x, float("-inf"), alpha=1),
    lambda x: aten.sum(x, [-1], True),
    lambda x: aten._softmax(x, -1, False),
    lambda x: aten.transpose(x, 0, 1),
    lambda x: aten.clone(x, memory_format=torch.contiguous_format),
    lambda x: aten._to_copy(aten._to_copy(x, dtype=torch.float16), dtype=torch.float32),
    lambda x: aten.cat([x, x], 0),
    lambda x: aten.native_layer_norm(x, [x.shape[-1]], None, None, 1e-5)[0],
    lambda x: aten.split(x, 1, 0)[0],
    lambda x: aten.reshape(x, [x.shape[0] * x.shape[1], 1]),
    lambda x: aten.expand(aten.full([1], 0.5), [x.shape[0], 1]),
    lambda x: aten.where(aten.gt(x, 0.5), x, aten.scalar_tensor(3.0)),
)


def same_when_read_back(text: str) -> Any:
    region = read_region_text(text)
    assert write_region_text(region.graph_module, region.inputs, region.outputs, region.phase, region.matches) == text
    assert region.key == region_key(text)
    return region


@settings(derandomize=True, deadline=None, max_examples=draws(25, 60))
@given(st.lists(st.integers(0, len(UNARY) - 1), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_random_chains_round_trip(steps: list[int], dynamic: bool, join: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value, other = x, aten.mm(x, y)
        for step in steps:
            value = UNARY[step](value)
        return (value, aten.mul(aten.sum(other), aten.sum(value))) if join else (value,)

    inputs = (torch.randn(3, 5), torch.randn(5, 7))
    graph_module = trace(function, inputs, dynamic)
    region = same_when_read_back(write(graph_module))
    for ours, theirs in zip(region.graph_module(*inputs), graph_module(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert region.dynamic == dynamic or not dynamic


def test_a_dynamic_region_runs_on_other_sizes_and_keeps_hints() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten.reshape(x, [x.shape[0] * x.shape[1] // 2, -1]), aten.new_full(x, [x.shape[0] + 3], 1.0)

    text = write(trace(function, (torch.randn(6, 4),), dynamic=True))
    region = same_when_read_back(text)
    assert "# hint s0 6" in text
    assert [size.hint for size in region.inputs[0].meta.shape] == [6, 4]
    flat, line = region.graph_module(torch.randn(10, 8))
    assert (flat.shape, line.shape) == ((40, 2), (13,))


def test_hints_are_not_part_of_the_key() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (aten.mul(x, x.shape[0]),)

    first, second = (write(trace(function, (torch.randn(rows, 4),), dynamic=True)) for rows in (6, 9))
    assert first != second
    assert region_key(first) == region_key(second)


def test_equal_work_of_different_layers_has_one_key() -> None:
    def first(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
        return (aten.add(aten.mm(x, weight), 1.0),)

    def second(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
        return (aten.add(aten.mm(x, weight), 1.0, alpha=1),)

    inputs = (torch.randn(2, 3), torch.randn(3, 4))
    renamed = trace(second, inputs)
    for node in renamed.graph.nodes:
        node.name = f"layer_{node.name}"
    assert region_key(write(trace(first, inputs))) == region_key(write(renamed))


@pytest.mark.parametrize(
    "other",
    [
        (lambda x: (aten.mul(x, 3),), torch.randn(4, 6)),
        (lambda x: (aten.mul(x, 2.0),), torch.randn(4, 6)),
        (lambda x: (aten.mul(x, 2),), torch.randn(6, 4)),
        (lambda x: (aten.mul(x, 2),), torch.randn(6, 4).t()),
        (lambda x: (aten.mul(x, 2),), torch.randn(4, 6, dtype=torch.float64)),
        (lambda x: (aten.div(x, 2),), torch.randn(4, 6)),
    ],
)
def test_different_work_has_another_key(other: Any) -> None:
    function, argument = other
    base = write(trace(lambda x: (aten.mul(x, 2),), (torch.randn(4, 6),)))
    assert region_key(write(trace(function, (argument,)))) != region_key(base)


def test_roles_phases_and_matches_are_part_of_the_key() -> None:
    graph_module = trace(lambda x: (aten.mul(x, 2),), (torch.randn(4, 6),))
    base = write(graph_module)
    weight = write(graph_module, role=InputRole.PARAMETER)
    matched = write(graph_module, matches=[("double", ("mul",))])
    assert len({region_key(text) for text in (base, weight, matched, base.replace("inference", "forward"))}) == 4
    assert same_when_read_back(matched).matches == (("double", ("v1",)),)
    assert same_when_read_back(weight).inputs[0].role is InputRole.PARAMETER


def test_lifted_constants_travel_by_value() -> None:
    constant = torch.tensor([[1.5, -2.0], [float("nan"), 4.0]]).t()
    graph_module = trace(lambda x: (aten.add(x, constant),), (torch.randn(2, 2),))
    region = same_when_read_back(write(graph_module))
    x = torch.randn(2, 2)
    torch.testing.assert_close(region.graph_module(x)[0], x + constant, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64, torch.uint8])
def test_constants_of_every_kind(dtype: torch.dtype) -> None:
    constant = torch.ones(3).to(dtype)
    region = same_when_read_back(write(trace(lambda x: (aten.clone(constant), x), (torch.randn(2),))))
    assert torch.equal(region.graph_module(torch.randn(2))[0], constant)


def test_views_are_described_as_they_were_judged() -> None:
    graph_module = trace(lambda x: (aten.max(x, 0)[1], aten.transpose(x, 0, 1)), (torch.randn(4, 6),))
    views = same_when_read_back(write(graph_module)).views
    assert [view.op for view in views] == ["aten.max.dim", "getitem", "getitem", "aten.transpose.int"] or [
        view.op for view in views
    ] == ["aten.max.dim", "getitem", "aten.transpose.int"]
    assert OpTag.MULTI_OUTPUT in views[0].node.tags
    assert OpTag.VIEW in views[-1].node.tags


def test_unbacked_sizes_round_trip() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True))
    with mode:
        value = torch.empty(8, 2)
    graph_module = make_fx(lambda x: (aten.nonzero(x),), tracing_mode="real", _allow_non_fake_inputs=True)(value)
    text = write(graph_module)
    assert "unbacked" in text
    region = same_when_read_back(text)
    assert torch.equal(region.graph_module(torch.eye(8, 2))[0], torch.eye(8, 2).nonzero())
