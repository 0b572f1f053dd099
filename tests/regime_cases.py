"""Costs that depend on the size, and backends under other names, for tests of regimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flat_costs import FlatCosts

from mixbackend.contracts import Estimate, OpView

LINES = {"small": (1e-6, 1e-7), "large": (1e-4, 1e-9), "eager": (1e-2, 1e-6)}
"""Seconds of an op and seconds per element of its result."""
WIDTH = 4
MEETING = (1e-4 - 1e-6) / (1e-7 - 1e-9) / WIDTH
"""So many rows of ``WIDTH`` cost the same on both."""


@dataclass(frozen=True, kw_only=True)
class BySize(FlatCosts):
    """Costs that are lines in the number of elements."""

    lines: Mapping[str, tuple[float, float]]
    access_s: float = 1e-12
    crossing_s: float = 1e-3
    entry_s: float = 1e-9

    def op(self, backend: str, view: OpView) -> Estimate:
        base, slope = self.lines[backend]
        return Estimate(base + slope * sum(meta.elements() for meta in view.output_tensors), "prior")


def named(base: type, name: str) -> Any:
    return type(name.title(), (base,), {"name": name, "fingerprint": lambda self: f"{name} 1"})()


def regimes_of(mixture: Any, graph: int = 0) -> list[dict[str, Any]]:
    return mixture.report().to_dict()["graphs"][graph]["regimes"]


def function(value: torch.Tensor) -> torch.Tensor:
    return (value.sin() + 1).cos()


def value_of(rows: int) -> torch.Tensor:
    value = torch.randn(rows, WIDTH)
    torch._dynamo.mark_dynamic(value, 0)
    return value
