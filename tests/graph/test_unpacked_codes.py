"""Codes of few bits that are taken out of bytes become one expression, with the same values bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from tiers import draws
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from mixbackend.graph.unpacked_codes import applies, write_expressions

aten = torch.ops.aten


def bytes_of(*sizes: int) -> Tensor:
    return torch.randint(0, 256, sizes, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def hold(function: Callable[[Tensor], Tensor], given: Tensor) -> torch.fx.GraphModule:
    module = make_fx(function, tracing_mode="fake")(given)
    assert applies(module) and write_expressions(module) == 1 and not applies(module)
    module.graph.lint()
    result, wanted = module(given), function(given)
    assert torch.equal(result, wanted) and (result.dtype, result.stride()) == (wanted.dtype, wanted.stride())
    (output,) = module.graph.find_nodes(op="output")
    (value,) = [node.meta["val"] for node in output.all_input_nodes]
    assert (value.dtype, value.shape, value.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    return module


@settings(max_examples=draws(21, 60), deadline=None, derandomize=True, database=None)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    axis=st.integers(0, 3),
    bits=st.sampled_from([1, 2, 4]),
    upwards=st.booleans(),
    stacked=st.booleans(),
    dtype=st.sampled_from([torch.uint8, torch.int8, torch.int32, torch.float32]),
    moved=st.booleans(),
)
def test_values_stay(
    sizes: list[int], axis: int, bits: int, upwards: bool, stacked: bool, dtype: torch.dtype, moved: bool
) -> None:
    shifts = list(range(0, 8, bits))[:: 1 if upwards else -1]

    def unpacked(w: Tensor) -> Tensor:
        parts = [((w >> shift if shift else w) & (1 << bits) - 1).to(dtype) for shift in shifts]
        parts = [part - 3 for part in parts] if moved else parts
        return torch.stack(parts, axis % (len(sizes) + 1)) if stacked else torch.cat(parts, axis % len(sizes))

    hold(unpacked, bytes_of(*sizes))


def test_a_shift_without_a_mask() -> None:
    module = hold(lambda w: torch.stack([w >> 4, w & 15], -1).flatten(1), bytes_of(3, 4))
    assert not module.graph.find_nodes(op="call_function", target=aten.stack.default)


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "of two tensors": lambda w: torch.stack([w & 15, (w + 1) >> 4], -1),
    "shifts of no regular step": lambda w: torch.stack([w & 3, (w >> 2) & 3, (w >> 6) & 3], -1),
    "the same twice": lambda w: torch.stack([w & 15, w & 15], -1),
    "other masks": lambda w: torch.stack([w & 7, w >> 4], -1),
    "another step after one": lambda w: torch.stack([(w & 15).int(), (w >> 4).int() - 1], -1),
    "whole bytes": lambda w: torch.stack([w, w >> 4], -1),
    "signed": lambda w: torch.stack([w.view(torch.int8) & 15, w.view(torch.int8) >> 4], -1),
    "zeros of groups": lambda w: torch.ones(3, 8, 5) - torch.stack([w & 15, w >> 4], -1).reshape(3, 8, 1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_left(name: str) -> None:
    module = make_fx(OTHERS[name], tracing_mode="fake")(bytes_of(3, 4))
    assert not applies(module) and write_expressions(module) == 0
