"""Templates write where copies of their results would go, wherever that is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.check import check_stages
from mixbackend.backends.codegen.ir.stages import Map, StageGraph, Template
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.backends.codegen.schedule.simplify import simplify
from mixbackend.backends.codegen.schedule.split_loops import split_loops
from mixbackend.graph.trace import trace_region

attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BATCH, LENGTH, HEADS, WIDTH = 2, 5, 3, 8


def simplified(function: Callable[[torch.Tensor], object], *, dynamic: bool = False) -> StageGraph:
    """What is left of the stages of a function of the result of attention."""
    x = torch.randn(BATCH, HEADS, LENGTH, WIDTH)
    region = trace_region(lambda x: function(attention(x, x, x, scale=0.3)[0]), [x], dynamic=dynamic)
    graph = lower_region(region)
    inputs = [x if item.name.startswith("arg") else item.meta.hint for item in region.inputs]
    expected = interpret_stages(graph, inputs)
    result, _ = simplify(graph, {})
    for graph in (result, split_loops(result)):
        check_stages(graph)
        for one, other in zip(interpret_stages(graph, inputs), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
            assert one.stride() == other.stride()
    return result


def kinds(graph: StageGraph) -> list[type]:
    return [type(stage) for stage in graph.stages]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda y: y.clone(memory_format=torch.contiguous_format),
        lambda y: y.transpose(1, 2).clone(memory_format=torch.contiguous_format),
        lambda y: y.transpose(1, 2).reshape(y.shape[0], y.shape[2], HEADS * WIDTH),
        lambda y: y.reshape(y.shape[0] * HEADS, y.shape[2], WIDTH).clone(),
        lambda y: y.permute(2, 0, 1, 3).reshape(y.shape[2] * y.shape[0], HEADS * WIDTH),
        lambda y: y.transpose(1, 2).unsqueeze(1).clone(),
    ],
)
def test_a_change_of_dimensions_is_written_at_once(function, dynamic):
    graph = simplified(function, dynamic=dynamic)
    assert kinds(graph) == [Template]


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y[:, :2].clone(),
        lambda y: y.expand(2, BATCH, HEADS, LENGTH, WIDTH).clone(),
        lambda y: y.flip(2),
        lambda y: y.bfloat16(),
        lambda y: y * 2,
        lambda y: torch.cat((y, y), 1),
        lambda y: y.transpose(1, 2).reshape(-1),
    ],
)
def test_anything_else_is_a_stage_of_its_own(function):
    graph = simplified(function)
    assert kinds(graph)[0] is Template and len(graph.stages) == 2


def test_a_result_that_is_needed_as_it_is_stays():
    graph = simplified(lambda y: (y, y.transpose(1, 2).reshape(BATCH, LENGTH, HEADS * WIDTH)))
    assert kinds(graph) == [Template, Map]
    graph = simplified(lambda y: (y.transpose(1, 2).clone(), y.transpose(2, 3).clone()))
    assert kinds(graph) == [Template, Map, Map]
