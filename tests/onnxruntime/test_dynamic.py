"""One session serves all sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

aten = torch.ops.aten


def _block(x, weight, bias, scale, shift):
    y = torch.nn.functional.linear(x, weight, bias)
    y = torch.nn.functional.layer_norm(torch.nn.functional.gelu(y) + x, [16], scale, shift)
    batch, length, _ = y.shape
    heads = y.view(batch, length, 4, 4).transpose(1, 2)
    scores = torch.softmax(heads @ heads.transpose(-1, -2) * 0.5, -1)
    causal = torch.tril(torch.ones(length, length, dtype=torch.bool))
    scores = scores.masked_fill(~causal, 0.0)
    merged = (scores @ heads).transpose(1, 2).reshape(batch, length, 16)
    return merged, merged.mean(1), merged[:, -1]


_WEIGHTS = tuple(
    torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((16, 16), (16,), (16,), (16,))
)


@pytest.fixture(scope="module")
def block(workbench):
    return workbench.build(_block, [torch.randn(3, 7, 16), *_WEIGHTS], dynamic=True)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(batch=st.integers(2, 6), length=st.integers(2, 40))
def test_block_serves_all_sizes(workbench, block, batch, length):
    workbench.check(_block, torch.randn(batch, length, 16), *_WEIGHTS, built=block)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(x.shape[0]) + x[:, 0].long(),
        lambda x: torch.arange(2, x.shape[0] + 3, 2),
        lambda x: torch.zeros(x.shape[0], x.shape[1]) + x,
        lambda x: x[:, : x.shape[1] - 1],
        lambda x: x[:, x.shape[1] // 2 :],
        lambda x: x.reshape(-1),
        lambda x: x.flatten().reshape(x.shape[1], x.shape[0]),
        lambda x: x[:, :, None].expand(-1, -1, 3),
        lambda x: x[None].expand(4, x.shape[0], x.shape[1]),
        lambda x: x.repeat(2, 3),
        lambda x: x.var(1) + x.mean(),
        lambda x: torch.cat([x, x.new_ones(x.shape[0], 2)], 1),
        lambda x: x * x.shape[0] / (x.shape[1] + 1),
        lambda x: torch.nn.functional.pad(x, (1, 2)),
        lambda x: x.triu(1) + x.cumsum(0),
        lambda x: x.t() @ x,
        lambda x: x[torch.arange(x.shape[0] - 1)],
        lambda x: torch.full((x.shape[0],), x.shape[1]),
        lambda x: x.flip(1),
        lambda x: torch.softmax(x, 0).argmax(1),
        lambda x: aten.select_backward(x, [x.shape[0], 9, x.shape[1]], 1, -2),
        lambda x: aten.slice_backward(x[:, None], [x.shape[0], 9, x.shape[1]], 1, 3, 4, 1),
    ],
)
def test_sizes_inside(workbench, function):
    built = workbench.build(function, [torch.randn(5, 7)], dynamic=True)
    for shape in ((5, 7), (6, 9), (11, 4)):
        workbench.check(function, torch.randn(shape), built=built)


def test_empty_at_run_time_is_a_precondition(workbench):
    """The kernels are not held against empty tensors, so a size that may be zero is checked before each call."""
    built = workbench.build(lambda x: x + 1, [torch.randn(5, 7)], dynamic=True)
    assert all(condition.relation == "at_least" for condition in built.compiled.preconditions)
    lows = [size.lower for item in built.region.inputs if hasattr(item.meta, "shape") for size in item.meta.shape]
    assert len(built.compiled.preconditions) == sum(low < 1 for low in lows)


def test_memory_of_two_sizes_does_not_mix(workbench):
    built = workbench.build(lambda x: (x * 2, x.sum(1)), [torch.randn(5, 7)], dynamic=True)
    first, second = torch.randn(4, 6), torch.randn(9, 3)
    results = built(first), built(second)
    assert torch.equal(results[0][0], first * 2)
    assert torch.equal(results[1][0], second * 2)
