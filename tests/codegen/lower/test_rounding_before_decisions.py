"""Fused 16-bit values are rounded before a comparison or an integer is made of them: the same decisions as eager's."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.graph.trace import trace_region


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "decide",
    [
        lambda x: (x * 10.3).to(torch.int8),
        lambda x: (x * 1.001) > 1.5,
        lambda x: (x + 256.0) == 256.0,
        lambda x: (x - 300.0) != x,
    ],
)
def test_decisions_are_eagers(dtype: torch.dtype, decide) -> None:
    values = torch.linspace(-8, 8, 4001).to(dtype)
    region = trace_region(decide, [values])
    (result,) = CodegenBackend().compile(region).run([values])
    assert torch.equal(result, decide(values))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "place",
    [
        lambda x: (x * 1.37).argmax(-1),
        lambda x: (x * 1.37).min(-1).indices,
        lambda x: (x * 1.37).cummax(-1).indices,
        lambda x: (x * 1.37).cummin(-1).indices,
        lambda x: torch.nn.functional.max_pool1d_with_indices(x * 1.37, 5)[1],
        lambda x: torch.nn.functional.max_pool1d_with_indices(x * 1.37, 50)[1],
    ],
)
def test_extremes_lie_where_eagers_do(dtype: torch.dtype, place) -> None:
    """Neighbours that differ before they are rounded, and are equal afterwards."""
    generator = torch.Generator().manual_seed(0)
    values = (1 + torch.arange(400) % 16 * torch.finfo(dtype).eps)[torch.randperm(400, generator=generator)]
    values = values.to(dtype).view(1, 4, 100)
    region = trace_region(place, [values])
    (result,) = CodegenBackend().compile(region).run([values])
    assert torch.equal(result, place(values))
