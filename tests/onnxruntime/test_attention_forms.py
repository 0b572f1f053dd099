"""Attention as one operator: masks of every form, rows of all heads or heads apart, older releases without it."""

from __future__ import annotations

import onnxruntime
import pytest
import torch
from torch.nn import functional

from mixbackend.backends.common.onnx import lower_region
from mixbackend.backends.onnxruntime.kernels import target
from mixbackend.graph.trace import trace_region

_SDPA = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_LOWEST = torch.finfo(torch.float32).min


def _rows(x, y, mask, causal):
    """Heads out of rows, as models write it."""
    query = x.view(2, 5, 3, 8).transpose(1, 2)
    key, value = (y.view(2, 7, 3, 8).transpose(1, 2) for _ in range(2))
    return _SDPA(query, key, value, 0.0, causal, attn_mask=mask)[0].transpose(1, 2).reshape(2, 5, 24)


def _masks():
    hidden = torch.zeros(5, 7)
    hidden[2] = float("-inf")
    hidden[0, :3] = float("-inf")
    yield "floats", torch.randn(5, 7)
    yield "rows that see nothing", hidden
    yield "per batch", torch.randn(2, 1, 5, 7)
    yield "per head", torch.randn(1, 3, 5, 7)
    yield "keys alone", torch.randn(2, 1, 1, 7)
    yield "queries alone", torch.randn(1, 1, 5, 1)
    lowest = torch.where(torch.rand(5, 7) > 0.5, 0.0, _LOWEST)
    lowest[0], lowest[1], lowest[3, 0] = _LOWEST, float("-inf"), 0.0
    yield "lowest numbers", lowest
    # Equal numbers hide nothing, whatever they are: rows of padding in batches of sentences look so.
    mixed = torch.full((5, 7), _LOWEST)
    mixed[1, 2:5], mixed[2] = float("-inf"), -1e38
    yield "nothing but lowest numbers", mixed


_MASKS = dict(_masks())


@pytest.mark.parametrize("name", _MASKS)
def test_masks(workbench, name):
    mask = _MASKS[name].expand(2, 3, 5, 7)
    built = workbench.check(lambda x, y, m: _rows(x, y, m, False), torch.randn(2, 5, 24), torch.randn(2, 7, 24), mask)
    assert "Attention" in built.compiled.source
    heads = [torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)]
    workbench.check(lambda q, k, v, m: _SDPA(q, k, v, attn_mask=m, scale=0.3)[0], *heads, mask)


def test_masks_that_are_spread_inside(workbench):
    """What the region spreads itself: the operator wants a mask over all queries and keys."""
    for shape in ((2, 1, 1, 7), (1, 1, 5, 1), (5, 7), (1, 7)):
        workbench.check(
            lambda x, y, m: _rows(x, y, m.expand(2, 3, 5, 7), False),
            *(torch.randn(2, 5, 24), torch.randn(2, 7, 24), torch.randn(shape)),
        )


def test_causal_with_more_keys_than_queries(workbench):
    workbench.check(lambda x, y: _rows(x, y, None, True), torch.randn(2, 5, 24), torch.randn(2, 7, 24))


def test_rows_cross_without_being_turned(workbench):
    built = workbench.check(lambda x, y: _rows(x, y, None, False), torch.randn(2, 5, 24), torch.randn(2, 7, 24))
    assert "q_num_heads" in built.compiled.source


def test_all_sizes(workbench):
    def attend(x):
        batch, length, _ = x.shape
        heads = x.view(batch, length, 4, 8).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(x.shape)

    built = workbench.build(attend, [torch.randn(3, 9, 32)], dynamic=True)
    for shape in ((2, 4), (3, 9), (5, 37)):
        workbench.check(attend, torch.randn(*shape, 32), built=built)


def test_releases_without_the_operator_get_products_and_a_softmax():
    inputs = [torch.randn(2, 5, 24), torch.randn(2, 7, 24), _MASKS["rows that see nothing"].expand(2, 3, 5, 7)]
    region = trace_region(lambda x, y, m: _rows(x, y, m, False), inputs)
    old, new = (lower_region(region, target(version)).model for version in ((1, 30), (1, 31)))
    assert [item.opset_import[0].version for item in (old, new)] == [20, 23]
    operators = {node.op_type for node in old.graph.node}
    assert "Softmax" in operators
    assert "Attention" not in operators
    session = onnxruntime.InferenceSession(old.SerializeToString(), providers=["CPUExecutionProvider"])
    by_shape = {tuple(item.shape): item for item in inputs}
    feed = {item.name: by_shape[tuple(item.shape)].contiguous().numpy() for item in session.get_inputs()}
    torch.testing.assert_close(torch.from_numpy(session.run(None, feed)[0]), _rows(*inputs, False))
