"""Values at the edges of each type, and how results are compared: bit for bit, but every NaN is one."""

from __future__ import annotations

import torch


def float_edges(dtype: torch.dtype) -> torch.Tensor:
    limits = torch.finfo(dtype)
    small = limits.smallest_normal
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 7.25, float("inf"), -float("inf"), float("nan")]
    edges += [small, -small / 4, limits.max, limits.min, 2.0**24 + 1, 65519.0, 65520.0, 6e-8, 3e-8]
    torch.manual_seed(1)
    return torch.cat([torch.tensor(edges, dtype=torch.float64), torch.randn(26, dtype=torch.float64) * 9]).to(dtype)


def integer_edges(dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    edges = [0, 1, -1, 2, -2, 3, 7, -7, 31, 63, 64, 100, limits.max, limits.min, limits.max - 1, limits.min + 1]
    return torch.cat([torch.tensor(edges), torch.randint(-50, 50, (16,))]).to(dtype)


def _same(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    if not actual.dtype.is_floating_point:
        return actual == expected
    equal = (actual == expected) & (actual.signbit() == expected.signbit())
    return equal | (actual.isnan() & expected.isnan())


def assert_same(actual: torch.Tensor, expected: torch.Tensor, *given: torch.Tensor) -> None:
    wrong = (~_same(actual, expected)).nonzero()[:, 0][:5].tolist()
    assert not wrong, [(*(x[i].item() for x in given), actual[i].item(), expected[i].item()) for i in wrong]
