"""A cost model for tests that care about a few prices only; those inherit and say which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mixbackend.contracts import CostModel, Estimate, OpView, TensorMeta


@dataclass(frozen=True, kw_only=True)
class FlatCosts(CostModel):
    """Every op costs the same on a backend; all else costs little, and depends on nothing.

    Attributes:
        seconds: of an op, by backend.
        other_s: of an op on any other backend.
        access_s: to read or write a tensor.
        crossing_s: between backends.
        entry_s: of a region.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    other_s: float = 1e-6
    access_s: float = 1e-9
    crossing_s: float = 1e-8
    entry_s: float = 1e-7

    def op(self, backend: str, view: OpView) -> Estimate:
        return Estimate(self.seconds.get(backend, self.other_s), "prior")

    def read(self, backend: str, meta: TensorMeta) -> float:
        return self.access_s

    def write(self, backend: str, meta: TensorMeta) -> float:
        return self.access_s

    def crossing(self, producer: str, consumer: str, meta: TensorMeta) -> float:
        return self.crossing_s

    def entry(self, backend: str) -> float:
        return self.entry_s
