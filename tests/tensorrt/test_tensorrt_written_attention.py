"""Attention that torch wrote out in float32 between halves is one label, and computed in halves."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch
from flat_costs import FlatCosts

from mixbackend.backends.eager import EagerBackend
from mixbackend.backends.tensorrt.model import prepare
from mixbackend.backends.tensorrt.precision import float32_by_name
from mixbackend.backends.tensorrt.versions import Release
from mixbackend.contracts import Plan, Region
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place

from .conftest import OLDEST, given

aten = torch.ops.aten
HEADS, SIZE = 4, 16


def _split(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(*value.shape[:2], HEADS, SIZE).transpose(1, 2)


def _torch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """As torch writes it out."""
    made = aten._scaled_dot_product_attention_math(_split(query), _split(key), _split(value), mask)[0]
    return made.transpose(1, 2).clone(memory_format=torch.contiguous_format).reshape(query.shape)


def _scaled_late(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """In float32, where products may be large before they are scaled."""
    scores = torch.matmul(_split(query).float(), _split(key).float().transpose(2, 3)) * 0.25
    return torch.matmul(aten._safe_softmax(scores, -1), _split(value).float()).to(query.dtype)


def _values(masked: bool = False, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(2, length, HEADS * SIZE).to(dtype) for length in (5, 8, 8)]
    if not masked:
        return made
    mask = torch.zeros(2, 1, 5, 8, dtype=dtype)
    mask[:, :, :, 6:] = float("-inf")
    mask[0, :, 2] = float("-inf")
    return [*made, mask]


def _placed(bench: Any, function: Any, values: list[torch.Tensor]) -> tuple[Plan, Region]:
    module, graph = trace_graph(function, values)
    plan = place(graph, [bench.backend, EagerBackend()], FlatCosts(seconds={"tensorrt": 1e-4, "eager": 1e-3}))
    return plan, cut_regions(module, graph, plan)[0].region


@pytest.mark.parametrize("masked", [False, True], ids=["all keys", "masked"])
def test_nothing_between_is_float32(bench: Any, masked: bool) -> None:
    plan, region = _placed(bench(), _torch, _values(masked))
    assert [(item.backend, len(item.matches)) for item in plan.regions] == [("tensorrt", 1)]
    model = onnx.load_from_string(prepare(region, Release.of(OLDEST)).model)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("MatMul") == 2 and kinds.count("Softmax") == 1 and "Cast" not in kinds
    assert True not in float32_by_name(model).values()


@pytest.mark.parametrize("masked", [False, True], ids=["all keys", "masked"])
def test_it_gives_what_the_written_ops_give(bench: Any, masked: bool) -> None:
    values, made = _values(masked), bench()
    _, region = _placed(made, _torch, values)
    (result,) = made.compile(region).run(given(region, values))
    wanted = _torch(*values)
    # A row without any key is zeros.
    assert not masked or not result[0, 2].any()
    torch.testing.assert_close(result, wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(_scaled_late, torch.float16), (_torch, torch.float32)],
    ids=["scaled after the product", "float32 itself"],
)
def test_what_may_not_be_narrowed_stays_wide(bench: Any, function: Any, dtype: torch.dtype) -> None:
    plan, region = _placed(bench(), function, _values(dtype=dtype))
    assert [item.backend for item in plan.regions] == ["tensorrt"] and not region.matches
    assert True in float32_by_name(onnx.load_from_string(prepare(region, Release.of(OLDEST)).model)).values()
