"""D4: ``Any`` binds tensors and no numbers; commutative ops inside one another are tried in every order."""

from __future__ import annotations

from itertools import product

import pytest
import sympy
from partitioner_cases import TableBackend, TableCosts, eager, graph, meta, node

from mixbackend.contracts import (
    Any,
    GraphInput,
    InputRole,
    Match,
    NodeRef,
    Op,
    OpGraph,
    OpNode,
    Pattern,
    Supported,
    SymbolicSize,
    Unsupported,
    Verdict,
)
from mixbackend.partitioner import place

ADD, MUL, SIN, COS = "aten.add.Tensor", "aten.mul.Tensor", "aten.sin.default", "aten.cos.default"
COSTS = TableCosts(0, {"fast": 0.0, "eager": 0.0}, {}, {("fast", ""): 9.0, ("eager", ""): 9.0}, 0.0, 0.0, 0.0)


def matches(op_graph: OpGraph, pattern: Pattern) -> list[tuple[str, ...]]:
    plan = place(op_graph, [TableBackend("fast", claims=(pattern,)), eager()], COSTS)
    return [nodes for region in plan.regions for _, nodes in region.matches]


def turned(first: str, second: str, swap: bool) -> tuple[str, str]:
    return (second, first) if swap else (first, second)


NESTED = Pattern(
    "nested",
    Op(
        (ADD,),
        (
            Op((MUL,), (Op((ADD,), (Any("x"), Op((SIN,), (Any("x"),))), commutative=True), Any("y")), commutative=True),
            Op((COS,), (Any("y"),)),
        ),
        commutative=True,
    ),
    cost=lambda match: 0.1,
)


@pytest.mark.parametrize("swaps", list(product((False, True), repeat=3)))
def test_every_order_of_nested_operands(swaps: tuple[bool, bool, bool]) -> None:
    nodes = [
        node("s", SIN, "x0"),
        node("a", ADD, *turned("x0", "s", swaps[0])),
        node("m", MUL, *turned("a", "x1", swaps[1])),
        node("c", COS, "x1"),
        node("r", ADD, *turned("m", "c", swaps[2])),
    ]
    assert matches(graph(nodes, ["r"], inputs=2), NESTED) == [("s", "a", "m", "c", "r")]


def test_an_order_that_fits_inside_and_not_outside_is_not_the_last() -> None:
    # Inside, x may be either factor; only one of them is what the other operand takes the sine of.
    pattern = Pattern(
        "inner first",
        Op((ADD,), (Op((MUL,), (Any("x"), Any("y")), commutative=True), Op((SIN,), (Any("x"),)))),
        cost=lambda match: 0.1,
    )
    for factors in (("x0", "x1"), ("x1", "x0")):
        nodes = [node("m", MUL, *factors), node("s", SIN, "x1"), node("r", ADD, "m", "s")]
        assert matches(graph(nodes, ["r"], inputs=2), pattern) == [("m", "s", "r")]


def test_a_check_may_refuse_one_order_and_take_the_other() -> None:
    def check(match: Match) -> Verdict:
        return Supported() if dict(match.bindings)["x"] == "x1" else Unsupported("argument", "the other way round")

    pattern = Pattern(
        "choosy",
        Op((SIN,), (Op((MUL,), (Any("x"), Any("y")), commutative=True),)),
        check=check,
        cost=lambda match: 0.1,
    )
    nodes = [node("m", MUL, "x0", "x1"), node("s", SIN, "m")]
    assert matches(graph(nodes, ["s"], inputs=2), pattern) == [("m", "s")]


@pytest.mark.parametrize(("factor", "fits"), [("n", False), ("x0", True)])
def test_numbers_are_not_bound(factor: str, fits: bool) -> None:
    size = SymbolicSize(sympy.Symbol("s0"), 4)
    inputs = (GraphInput("n", size, InputRole.SYMBOL), GraphInput("x0", meta(), InputRole.ACTIVATION))
    scaled = OpNode("m", MUL, (("self", NodeRef("x0")), ("other", NodeRef(factor))), (meta(),))
    op_graph = OpGraph("inference-0", "inference", inputs, (scaled, node("s", SIN, "m")), ("s",))
    pattern = Pattern("product", Op((SIN,), (Op((MUL,), (Any("x"), Any("y"))),)), cost=lambda match: 0.1)
    assert matches(op_graph, pattern) == ([("m", "s")] if fits else [])
