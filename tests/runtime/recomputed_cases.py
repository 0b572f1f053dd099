"""Costs by bytes, and what a fusing owner fuses, for tests of what the backward computes again."""

from __future__ import annotations

import dataclasses
import itertools

from mixbackend.contracts import CostModel, Estimate, TensorMeta

LOOPS = ("pointwise", "copy", "view", "softmax", "reduction", "gather", "factory")


def fused_pairs(*more: str) -> frozenset[tuple[str, str]]:
    """All pairs of classes that a compiler of loops fuses."""
    classes = (*LOOPS, *more)
    return frozenset(itertools.product(classes, classes))


@dataclasses.dataclass(frozen=True)
class ByteCosts(CostModel):
    """A byte takes a nanosecond; who inherits says what an op takes."""

    def read(self, backend: str, meta: TensorMeta) -> float:
        return 1e-9 * meta.bytes()

    def write(self, backend: str, meta: TensorMeta) -> float:
        return 1e-9 * meta.bytes()

    def crossing(self, producer: str, consumer: str, meta: TensorMeta) -> float:
        return 1e-8

    def entry(self, backend: str) -> float:
        return 1e-7

    def region(self, backend: str, key: str) -> Estimate | None:
        return None
