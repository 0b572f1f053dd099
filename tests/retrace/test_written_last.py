"""Regions that write into inputs, traced so that they write at the end: results and inputs are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mixbackend.backends.common.retrace import retrace_apart
from mixbackend.backends.inductor.backend import InductorBackend
from mixbackend.contracts import RegionSketch, Unsupported
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten


def rand(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def interleaved(x, y):
    before = x.sum()
    aten.copy_(x, x * 2)
    between = x + 1
    aten.copy_(x, x + y)
    return before, between, x * 3


def rows(x, y):
    place = torch.ops.aten.full.default([1], 2, dtype=torch.int64)
    aten.index_copy_(x, 1, place, y[:, :1])
    aten.index_put_(x, [None, place + 1], y[:, :1])
    return x.exp(), y.sum()


def what_a_copy_returns(x, y):
    result = aten.copy_(x, y * 2)
    aten.copy_(y, result + 1)
    return result.sum(), y.exp()


def other_types(x, y):
    aten.copy_(x, (y > 0.5).sum(0))
    return (x * 2,)


CASES: list[Callable[..., Any]] = [interleaved, rows, what_a_copy_returns, other_types]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", CASES)
def test_writes_are_the_last_ops(function: Callable[..., Any], dynamic: bool) -> None:
    region = trace_region(function, [rand(4, 8), rand(4, 8)], dynamic=dynamic)
    module = retrace_apart(region, "inductor").graph_module
    names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    writes = [name for name in names if name.split(".")[1].endswith("_") and not name.startswith("_")]
    assert writes == names[-len(region.written) :] == ["aten.copy_.default"] * len(region.written)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", CASES)
def test_inductor_leaves_in_inputs_what_eager_leaves_there(function: Callable[..., Any]) -> None:
    region = trace_region(function, [rand(4, 8), rand(4, 8)])
    mine, eagers = ([rand(4, 8), rand(4, 8)] for _ in range(2))
    results, expected = InductorBackend().compile(region).run(list(mine)), region.graph_module.forward(*eagers)
    for result, value in zip((*results, *mine), (*expected, *eagers), strict=True):
        torch.testing.assert_close(result, value)


def test_writes_that_cannot_wait_are_declined() -> None:
    def late(x, y):
        row = x[0]
        aten.copy_(x, y)
        return (row * 2,)

    region = trace_region(late, [rand(4, 4), rand(4, 4)])
    answer = InductorBackend().decline(RegionSketch(region.views, (), (), 1.0))
    assert isinstance(answer, Unsupported) and "a view of what was written into" in answer.detail
