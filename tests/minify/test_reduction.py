"""Regions are made small: fewest ops, small sizes, plain values; tests stand in for backends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixbackend.contracts import InputRole
from mixbackend.contracts.region_text import read_region_text
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region
from mixbackend.minify.piece import Piece
from mixbackend.minify.reduction import fewest_ops, slowest_ops, smallest
from mixbackend.minify.shrink import seeded_values, shrunk


def has(*ops: str):
    """A test that fails where all these ops are."""
    return lambda piece: {view.op for view in piece.region.views} >= set(ops)


def piece_of(function, *inputs, **options) -> Piece:
    return Piece(trace_region(function, inputs, **options), inputs)


def layer(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.nn.functional.layer_norm(x, (64,))
    z = torch.softmax(y @ w, -1)
    return (z * y).sum(-1), z.exp()


LAYER = (torch.randn(8, 64), torch.randn(64, 64))


@given(st.sets(st.integers(0, 30), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_exactly_what_is_needed_stays(needed: set[int]) -> None:
    tried: list[Sequence[int]] = []

    def fails(part: Sequence[int]) -> bool:
        tried.append(part)
        return needed <= set(part)

    assert set(smallest(range(31), fails)) == needed
    if len(needed) == 1:
        assert len(tried) <= 10


def test_one_op_is_left_with_the_values_that_it_had() -> None:
    piece = piece_of(layer, *LAYER)
    small = fewest_ops(piece, has("aten._softmax.default"))
    assert [view.op for view in small.region.views] == ["aten._softmax.default"]
    y = torch.nn.functional.layer_norm(LAYER[0], (64,))
    assert torch.allclose(small.inputs[0], y @ LAYER[1], atol=1e-5)
    again = read_region_text(small.region.text)
    assert torch.equal(again.graph_module(*small.inputs)[0], small.region.graph_module(*small.inputs)[0])


def test_two_ops_that_fail_together_stay_together() -> None:
    small = fewest_ops(piece_of(layer, *LAYER), has("aten.native_layer_norm.default", "aten.exp.default"))
    assert sorted(view.op for view in small.region.views if view.op != "getitem") == [
        "aten.exp.default",
        "aten.native_layer_norm.default",
    ]


def test_sizes_become_as_small_as_they_go() -> None:
    def long_rows(piece: Piece) -> bool:
        return any(
            view.op == "aten.mm.default" and int(view.input_tensors[0].shape[1]) > 5 for view in piece.region.views
        )

    small = shrunk(fewest_ops(piece_of(layer, *LAYER), long_rows), long_rows)
    assert [tuple(value.shape) for value in small.inputs] == [(1, 6), (6, 6)]
    assert all(torch.equal(mine, seed) for mine, seed in zip(small.inputs, seeded_values(small.inputs), strict=True))


def test_sizes_in_arguments_follow() -> None:
    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(4, 12, 2, 32).transpose(1, 2).reshape(8, 12, 32) + 1

    piece = piece_of(heads, torch.randn(48, 64))
    both = has("aten.transpose.int", "aten.add.Tensor")
    small = shrunk(fewest_ops(piece, both), both)
    assert all(value.numel() == 1 for value in small.inputs)


def test_of_what_is_slow_the_slowest_op_stays() -> None:
    losses = {"aten.native_layer_norm.default": 1.0, "aten.exp.default": 3.0, "aten._softmax.default": 2.0}

    def loss_of(piece: Piece) -> float | None:
        return sum(losses.get(view.op, 0.0) for view in piece.region.views) or None

    assert [view.op for view in slowest_ops(piece_of(layer, *LAYER), loss_of).region.views] == ["aten.exp.default"]


def test_symbols_and_constants_and_halves_go_where_they_do_not_matter() -> None:
    roles = {1: PlaceholderRole(InputRole.CONSTANT)}
    inputs = (torch.randn(6, 8, dtype=torch.bfloat16), torch.randn(8, 8, dtype=torch.bfloat16))
    piece = piece_of(lambda x, w: torch.relu(x @ w), *inputs, dynamic=True, roles=roles)
    small = shrunk(piece, has("aten.relu.default"))
    assert not small.region.dynamic and not any(role.is_weight for role in small.roles.values())
    assert {value.dtype for value in small.inputs} == {torch.float32}
    kept = shrunk(piece, lambda candidate: candidate.region.dynamic)
    assert kept.region.dynamic


def test_what_is_left_is_what_was_tried() -> None:
    piece, asked = piece_of(layer, *LAYER), []
    assert fewest_ops(piece, lambda candidate: bool(asked.append(candidate))) is piece
    small = fewest_ops(piece, lambda candidate: asked.append(candidate) or has("aten.exp.default")(candidate))
    assert small.ops == 1 and any(small is candidate for candidate in asked)


@pytest.mark.parametrize("budget", [0, 3])
def test_without_time_nothing_is_lost(budget: int) -> None:
    left = [budget]

    def fails(piece: Piece) -> bool:
        left[0] -= 1
        return left[0] >= 0 and has("aten.exp.default")(piece)

    assert has("aten.exp.default")(shrunk(fewest_ops(piece_of(layer, *LAYER), fails), fails))
