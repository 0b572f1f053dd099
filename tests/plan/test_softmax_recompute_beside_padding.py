"""Who pads products of unaligned rows copies what a recomputed softmax takes and gives: that is priced."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from mixbackend.backends.inductor import InductorBackend
from mixbackend.contracts import Estimate, OpGraph, OpView, Traits
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.graph.trace import trace_graph
from mixbackend.plan.fusion import Fusion
from mixbackend.plan.softmax_recompute import Recomputation

from .softmax_recompute_cases import ByteCosts, fused_pairs

aten = torch.ops.aten
FUSED = fused_pairs()
ROWS, WIDTH, ODD, EVEN = 64, 16, 4097, 4096


@dataclasses.dataclass(frozen=True)
class Rates(ByteCosts):
    """A byte takes a nanosecond, an op what is given."""

    op_s: float = 0.0

    def op(self, backend: str, view: OpView) -> Estimate:
        return Estimate(self.op_s, "prior")


@dataclasses.dataclass(frozen=True)
class Padding:
    """A backend as far as it is asked here."""

    pads: bool
    name: str = "one"

    def traits(self) -> Traits:
        return Traits(device_types=frozenset({"cpu", "cuda"}), fused=FUSED, pads_products=self.pads)


@dataclasses.dataclass(frozen=True)
class Placed:
    backend: str
    nodes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Placement:
    regions: tuple[Placed, ...]


def loss(hidden: Any, weight: Any, tangent: Any) -> Any:
    """Logarithms of a product's softmax, in float32, and the gradients of both operands."""
    logarithms = aten._log_softmax.default(
        aten._to_copy.default(aten.mm.default(hidden, weight), dtype=torch.float32), 1, False
    )
    given = aten._log_softmax_backward_data.default(tangent * 1, logarithms, 1, torch.float32)
    narrow = aten._to_copy.default(given, dtype=torch.bfloat16)
    return (
        logarithms.sum(),
        aten.mm.default(narrow, aten.t.default(weight)),
        aten.mm.default(aten.t.default(hidden), narrow),
    )


def joint(function: Any, columns: int, device: str = "cuda") -> OpGraph:
    with fresh_fake_mode():
        values = [
            torch.empty(ROWS, WIDTH, dtype=torch.bfloat16, device=device),
            torch.empty(WIDTH, columns, dtype=torch.bfloat16, device=device),
            torch.empty(ROWS, columns, device=device),
        ]
    return trace_graph(function, values)[1]


def recomputed(graph: OpGraph, pads: bool, apart: frozenset[str] = frozenset(), op_s: float = 0.0) -> set[str]:
    """Ops that the backward computes again; ``apart`` are those of another backend like it."""
    mine = tuple(node.name for node in graph.placed_nodes if node.op not in apart)
    others = tuple(node.name for node in graph.placed_nodes if node.op in apart)
    placement: Any = Placement((Placed("one", mine), Placed("other", others)))
    backends: Any = [Padding(pads), Padding(pads, "other")]
    fusion = Fusion.of(graph, placement, backends)
    tangent = graph.inputs[2].name
    found = Recomputation(fusion, Rates(op_s), tangents=frozenset({tangent}), decided=frozenset()).nodes()
    return {graph.node_by_name[name].op for name in found}


AGAIN = {"aten._log_softmax.default", "aten._to_copy.default"}


@pytest.mark.parametrize(
    ("columns", "device", "pads", "expected"),
    [
        (ODD, "cuda", True, set()),
        (ODD, "cuda", False, AGAIN),
        (EVEN, "cuda", True, AGAIN),
        (ODD, "cpu", True, AGAIN),
    ],
)
def test_rows_that_are_padded_are_not_worth_it(columns: int, device: str, pads: bool, expected: set[str]) -> None:
    assert recomputed(joint(loss, columns, device), pads) == expected


def test_a_product_of_somebody_else_is_copied_anyway() -> None:
    """Arithmetic as long as three bytes per element: with a copy more, saving eight would be too little."""
    arithmetic_s = 14 / 2 * 3e-9 * ROWS * ODD
    assert recomputed(joint(loss, ODD), True, frozenset({"aten.mm.default"}), arithmetic_s) == AGAIN


def test_one_copy_alone_may_be_worth_it() -> None:
    """No product reads the gradient: reading and copying scores of 16 bits is less than logarithms written and read."""

    def function(hidden: Any, weight: Any, tangent: Any) -> Any:
        wide = aten._to_copy.default(aten.mm.default(hidden, weight), dtype=torch.float32)
        logarithms = aten._log_softmax.default(wide, 1, False)
        given = aten._log_softmax_backward_data.default(tangent * 1, logarithms, 1, torch.float32)
        return logarithms.sum(), given.sum()

    assert recomputed(joint(function, ODD), True) == AGAIN


def test_what_padded_products_read_of_a_loop() -> None:
    graph = joint(loss, ODD)
    fusion = Fusion.of(graph, _all_of_one(graph), [Padding(True)])  # type: ignore[list-item]
    (gradient,) = (node.name for node in graph.placed_nodes if node.op == "aten._log_softmax_backward_data.default")
    operands = fusion.padded_operands(gradient)
    assert {graph.node_by_name[name].op for name in operands} == {"aten._to_copy.default"}
    assert len(fusion.padded) == 3


def _all_of_one(graph: OpGraph) -> Any:
    return Placement((Placed("one", tuple(node.name for node in graph.placed_nodes)),))


def test_inductor_pads() -> None:
    assert InductorBackend().traits().pads_products
