"""Backends that know one layout pay for the others where values enter and leave their regions, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from flat_costs import FlatCosts

from mixbackend.contracts import (
    Availability,
    Backend,
    CompiledRegion,
    InputRole,
    OpView,
    Region,
    Supported,
    TensorMeta,
    Traits,
    Unsupported,
    Verdict,
)
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place


@dataclass
class Stated(Backend):
    """Runs the operators that it is told to, nothing for real."""

    name: str = "stated"  # type: ignore[misc]
    operators: frozenset[str] = frozenset()
    stated: Traits = field(default_factory=Traits)

    def availability(self) -> Availability:
        return Availability(True)

    def fingerprint(self) -> str:
        return self.name

    def judge(self, view: OpView) -> Verdict:
        return Supported() if view.op in self.operators else Unsupported("unknown-op")

    def compile(self, region: Region) -> CompiledRegion:
        raise NotImplementedError

    def traits(self) -> Traits:
        return self.stated


class OnlyTraffic(FlatCosts):
    """A second to read a tensor, ten to write one; all else is free."""

    def read(self, backend: str, meta: TensorMeta) -> float:
        return 1.0

    def write(self, backend: str, meta: TensorMeta) -> float:
        return 10.0


ONLY_TRAFFIC = OnlyTraffic(other_s=0.0, crossing_s=0.0, entry_s=0.0)
PLAIN = torch.randn(2, 3, 4, 5)
LAST = PLAIN.contiguous(memory_format=torch.channels_last)
FREE, ROWS = Traits(), Traits(row_major=True)
COPY = 11.0


def seconds(image: torch.Tensor, first: Traits, second: Traits, role: InputRole = InputRole.ACTIVATION) -> float:
    """Of a graph of two ops, one on each backend."""
    aten: Any = torch.ops.aten
    roles = {0: PlaceholderRole(role)}
    _, graph = trace_graph(lambda value: aten.tanh(aten.exp(value)), [image], roles=roles)
    backends = [
        Stated("first", frozenset({"aten.exp.default"}), first),
        Stated("second", frozenset({"aten.tanh.default"}), second),
    ]
    return place(graph, backends, ONLY_TRAFFIC).estimated_s


@pytest.mark.parametrize(
    ("first", "second", "copies"),
    [(FREE, FREE, 0), (FREE, ROWS, 1), (ROWS, FREE, 2), (ROWS, ROWS, 1)],
    ids=["both any", "enters", "enters and leaves", "enters once"],
)
def test_other_layouts_are_copied_on_the_border(first: Traits, second: Traits, copies: int) -> None:
    assert seconds(LAST, first, second) == seconds(PLAIN, first, second) + copies * COPY


def test_constants_were_copied_before() -> None:
    assert seconds(LAST, ROWS, FREE, InputRole.CONSTANT) == seconds(PLAIN, ROWS, FREE) + COPY


def test_inside_a_region_layouts_make_no_difference() -> None:
    aten: Any = torch.ops.aten
    both = frozenset({"aten.exp.default", "aten.tanh.default", "aten.permute.default"})

    def function(value: torch.Tensor) -> torch.Tensor:
        return aten.exp(aten.permute(aten.tanh(aten.permute(aten.exp(value), [0, 2, 3, 1])), [0, 3, 1, 2]))

    estimates = []
    for traits in (FREE, ROWS):
        _, graph = trace_graph(function, [PLAIN])
        estimates.append(place(graph, [Stated("only", both, traits)], ONLY_TRAFFIC).estimated_s)
    assert estimates[0] == estimates[1]
