"""What is computed of an input that was set to zero lies in memory as eager's: torch 2.11 states it contiguous."""

from __future__ import annotations

import pytest
import torch

import mixbackend


def zeroed(value: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    value.zero_()
    return value * number + number, value.to(torch.float16)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_lie_as_eagers(dynamic):
    backend = mixbackend.auto({"backends": ["codegen", "eager"]})
    mine, eagers = (torch.randn(4, 5, 2, 2).permute(3, 2, 1, 0) for _ in range(2))
    results = torch.compile(zeroed, backend=backend, dynamic=dynamic)(mine, 3)
    for result, expected in zip(results, zeroed(eagers, 3), strict=True):
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()
    assert not mine.any()
