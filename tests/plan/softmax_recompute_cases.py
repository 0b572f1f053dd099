"""Costs by bytes, and what a fusing owner fuses, for tests of what the backward computes again."""

from __future__ import annotations

import dataclasses
import itertools

from flat_costs import FlatCosts

from mixbackend.contracts import TensorMeta

LOOPS = ("pointwise", "copy", "view", "softmax", "reduction", "gather", "factory")


def fused_pairs(*more: str) -> frozenset[tuple[str, str]]:
    """All pairs of classes that a compiler of loops fuses."""
    classes = (*LOOPS, *more)
    return frozenset(itertools.product(classes, classes))


@dataclasses.dataclass(frozen=True)
class ByteCosts(FlatCosts):
    """A byte takes a nanosecond; who inherits says what an op takes."""

    def read(self, backend: str, meta: TensorMeta) -> float:
        return 1e-9 * meta.bytes()

    def write(self, backend: str, meta: TensorMeta) -> float:
        return 1e-9 * meta.bytes()
