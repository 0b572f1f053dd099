"""Cross products along any dimension, of factors that broadcast; against eager."""

from __future__ import annotations

import pytest
import torch

SIZES = [((3,), (3,), -1), ((4, 3), (1, 3), -1), ((3, 5), (3, 5), 0), ((2, 3, 4), (2, 3, 1), 1), ((0, 3), (1, 3), -1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("left", "right", "dim"), SIZES)
def test_cross_products(check_lowering, left, right, dim, dtype):
    factors = [(torch.randn(sizes) * 9).to(dtype) for sizes in (left, right)]
    check_lowering(lambda a, b: torch.linalg.cross(a, b, dim=dim), factors)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_around_is_one_loop_with_it(check_lowering, dynamic):
    a, b = torch.randn(6, 3), torch.randn(6, 3)
    graph = check_lowering(lambda a, b: torch.linalg.cross(a * 2.0, b + 1.0).relu(), [a, b], dynamic=dynamic)
    assert "reduce" not in str(graph).lower()
