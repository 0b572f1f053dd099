"""Small models of the tests of packages, and what their packages are made with."""

from __future__ import annotations

from typing import Any

import torch

CONFIG: dict[str, Any] = {"backends": ["codegen", "onednn", "eager"]}


class Counting(torch.nn.Module):
    """A product, a buffer that counts calls, one that is not kept, a constant, and a weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(16, 32)
        self.same = self.wide
        self.narrow = torch.nn.Linear(32, 16)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("shift", torch.ones(16), persistent=False)
        self.table = torch.arange(2000.0)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> dict[str, Any]:
        self.calls.add_(1)
        y = self.narrow(torch.nn.functional.gelu(self.wide(x))) + self.shift
        return {
            "y": y * scale,
            "calls": self.calls.clone(),
            "table": self.table.sum(),
            "size": x.shape[0],
            "none": None,
        }


class Cached(torch.nn.Module):
    """Two methods that share a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = torch.nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.copy_(self.inside(x))
        return self.cache.sum(0)


class Step(torch.nn.Module):
    """The other method."""

    def __init__(self, cached: Cached) -> None:
        super().__init__()
        self.inside = cached.inside
        self.register_buffer("cache", cached.cache)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, position, self.inside(x))
        return self.cache.sum(0)


def error_of(result: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> float:
    """How many times as far from float64 as eager, with a floor of a few units in the last place."""
    floor = 32 * torch.finfo(eager.dtype).eps * max(float(exact.abs().max()), 1e-30)
    return float((result.double() - exact).abs().max()) / max(float((eager.double() - exact).abs().max()), floor)
