"""The rule of attention: its meaning against eager and float64, and every use that it leaves to others."""

from __future__ import annotations

import math

import pytest
import torch

from mixbackend.backends.codegen.ir.stages import Map, Template
from mixbackend.backends.codegen.lower.judging import judge_op
from mixbackend.contracts import Supported, Unsupported
from mixbackend.graph.trace import trace_region

attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def values(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def three(*sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [values(*sizes, dtype=dtype, seed=seed) for seed in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_meaning(check_lowering, dtype, dynamic):
    inputs = three(2, 3, 5, 8, dtype=dtype)
    check_lowering(lambda q, k, v: attention(q, k, v, scale=0.3), inputs, dynamic=dynamic)
    check_lowering(lambda q, k, v: attention(q, k, v, 0.0, True, scale=0.3), inputs, dynamic=dynamic)


def test_masks(check_lowering):
    mask = values(2, 1, 5, 5, seed=4)
    mask[0, 0, 2] = mask[1, 0, 3, 1:] = -math.inf
    for given in (mask, mask[:1], mask[0, 0], mask[:, :, :1]):
        check_lowering(lambda m, q, k, v: attention(q, k, v, attn_mask=m), [given, *three(2, 3, 5, 8)])


@pytest.mark.parametrize("keys", [3, 20])
def test_nan_spreads_over_its_row(check_lowering, keys):
    """Of fewer keys than a vector has lanes eager makes a row of nothing but NaN zeros."""
    query, key, value = three(2, 3, keys, 8)
    query[0, 1, 2, 3] = key[1, 0, 2, 3] = math.nan
    check_lowering(lambda q, k, v: attention(q, k, v), [query, key, value])


def test_views_are_read_where_they_lie(check_lowering):
    def packed(x):
        return attention(*x.view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0))[0]

    graph = check_lowering(packed, [values(2, 5, 48)])
    assert [type(stage) for stage in graph.stages] == [Template, Map]


def test_what_is_computed_has_memory_of_the_size_that_it_depends_on(check_lowering):
    def masked(hidden, q, k, v):
        mask = torch.where(hidden, -math.inf, 0.0).expand(2, 3, 5, 5)
        return attention(q, k, v, attn_mask=mask)[0]

    hidden = values(2, 1, 1, 5) > 1
    graph = check_lowering(masked, [hidden, *three(2, 3, 5, 8)])
    made = [dict(graph.types)[stage.target] for stage in graph.stages if isinstance(stage, Map)]
    assert [list(map(int, type_.sizes)) for type_ in made] == [[2, 1, 1, 5], [2, 3, 5, 8]]


def test_left_to_others(refused):
    inputs = three(2, 3, 5, 8)
    assert refused(lambda q, k, v: attention(q, k, v, 0.5), inputs) == ["random"]
    assert refused(lambda q, k, v: attention(q, k, v, scale=math.inf), inputs) == ["argument"]
    assert refused(lambda q, k, v: attention(q, k, v), [tensor.double() for tensor in inputs]) == ["dtype"]
    assert refused(lambda q, k, v: attention(q, k, v), inputs, dynamic=True) == ["dynamic-shape"]
    assert refused(lambda q, k, v: attention(q, k, v), three(0, 3, 5, 8)) == ["argument"]


def test_a_target_without_the_template_is_told():
    region = trace_region(lambda q, k, v: attention(q, k, v), three(2, 3, 5, 8))
    (view,) = (view for view in region.views if view.op != "getitem")
    assert judge_op(view) == judge_op(view, frozenset({"attention"})) == Supported()
    assert judge_op(view, frozenset()) == Unsupported("unknown-op", "the target has no template attention")
