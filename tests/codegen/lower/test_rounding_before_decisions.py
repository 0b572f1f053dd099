"""Fused 16-bit values are rounded before a comparison or an integer is made of them: the same decisions as eager's."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.graph.trace import trace_region


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
