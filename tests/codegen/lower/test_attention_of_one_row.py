"""One row of queries, as torch's ops for GPUs have it: folds that read keys and values where they lie."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from region_arguments import arguments

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.codegen.interpret.program import interpret_program
from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.check import check_program, check_stages
from mixbackend.backends.codegen.lower.table import lower_region
from mixbackend.benchmarks.golden.triton_text import PrintingTarget
from mixbackend.contracts import Region, Supported, Unsupported
from mixbackend.graph.trace import trace_region

aten = torch.ops.aten
BACKEND = CodegenBackend(PrintingTarget())
HEADS, KEYS, WIDTH = 6, 40, 16


def shared_heads(value: torch.Tensor, times: int) -> torch.Tensor:
    """Each head of keys for several heads of queries."""
    batch, heads, keys, width = value.shape
    return value[:, :, None].expand(batch, heads, times, keys, width).reshape(batch, heads * times, keys, width)


def efficient(query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    return aten._scaled_dot_product_efficient_attention(query, key, value, mask, False, **options)[0]


def cudnn(query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    return aten._scaled_dot_product_cudnn_attention(query, key, value, mask, False, **options)[0]


def inputs(dtype: torch.dtype, shared: int = 1, batch: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    query = torch.randn(batch, HEADS, 1, WIDTH)
    keys, values = (torch.randn(batch, HEADS // shared, KEYS, WIDTH) for _ in range(2))
    mask = torch.zeros(1, 1, 1, KEYS).masked_fill(torch.rand(KEYS) < 0.3, -math.inf)
    return [value.to(dtype) for value in (query, keys, values, mask)]


def region_of(function: Any, values: list[torch.Tensor]) -> Region:
    region = trace_region(function, values)
    assert [verdict for view in region.views if not isinstance(verdict := BACKEND.judge(view), Supported)] == []
    return region


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", [efficient, cudnn])
@pytest.mark.parametrize("shared", [1, 3])
def test_it_is_what_attention_is(op: Any, dtype: torch.dtype, shared: int) -> None:
    values = inputs(dtype, shared)

    def step(query: Any, key: Any, value: Any, mask: Any) -> Any:
        mask = mask.expand(2, HEADS, 1, KEYS)
        return op(query, shared_heads(key, shared), shared_heads(value, shared), mask, scale=0.3)

    region = region_of(step, values)
    check_stages(lower_region(region))
    program = BACKEND.program(region)
    check_program(program)
    given = arguments(region, values)
    query, key, value, mask = (item.double() for item in values)
    key, value = shared_heads(key, shared), shared_heads(value, shared)
    exact = F.scaled_dot_product_attention(query, key, value, mask, scale=0.3)
    for (result,) in (interpret_stages(lower_region(region), given), interpret_program(program, given)):
        assert result.dtype == dtype
        torch.testing.assert_close(
            result.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-3 * (dtype.itemsize == 2) + 1e-6
        )


def test_heads_that_share_keys_read_one_copy() -> None:
    """No tensor between kernels is as large as the keys of all heads."""
    values = inputs(torch.bfloat16, 3, batch=1)
    step = lambda q, k, v, m: cudnn(q, shared_heads(k, 3), shared_heads(v, 3), m.expand(1, HEADS, 1, KEYS))  # noqa: E731
    graph = BACKEND.program(region_of(step, values))
    assert int(graph.workspace_bytes) < 2 * HEADS * KEYS * WIDTH * 2


def test_heads_that_only_mostly_share_keys_read_their_own() -> None:
    """Behind the fourth head there are zeros, in the middle of what would be the second group."""
    query, key, value, _ = inputs(torch.float32, 3)

    def padded(x: torch.Tensor) -> torch.Tensor:
        return F.pad(shared_heads(x, 3)[:, :4], (0, 0, 0, 0, 0, 2)).clone()

    region = region_of(lambda q, k, v: efficient(q, padded(k), padded(v), None, scale=0.3), [query, key, value])
    (result,) = interpret_stages(lower_region(region), arguments(region, [query, key, value]))
    exact = F.scaled_dot_product_attention(query, padded(key), padded(value), scale=0.3)
    torch.testing.assert_close(result, exact)


def test_a_row_that_sees_no_key_gives_zeros() -> None:
    query, key, value, _ = inputs(torch.float32)
    mask = torch.full((2, HEADS, 1, KEYS), -math.inf)
    mask[0] = 0.0
    region = region_of(efficient, [query, key, value, mask])
    (result,) = interpret_stages(lower_region(region), arguments(region, [query, key, value, mask]))
    assert not result[1].any() and result[0].isfinite().all() and result[0].any()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda q, k, v, m: aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[0], "argument"),
        (lambda q, k, v, m: efficient(k, k, v, None), "argument"),
        (lambda q, k, v, m: efficient(q, k, v, None, is_causal=True), "argument"),
        (lambda q, k, v, m: efficient(q, k, v, None, dropout_p=0.5), "random"),
    ],
)
def test_what_is_left_to_torch(call: Any, code: str) -> None:
    region = trace_region(call, inputs(torch.float32))
    verdicts = [BACKEND.judge(view) for view in region.views]
    assert code in {verdict.code for verdict in verdicts if isinstance(verdict, Unsupported)}
