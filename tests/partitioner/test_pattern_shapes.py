"""Patterns beyond trees: reshapes on the way, and one part that is used several times."""

from __future__ import annotations

from partitioner_cases import BINARY, MATMUL, POINTWISE, TableBackend, TableCosts, eager, graph, node

from mixbackend.contracts import Any, Op, OpNode, OpTag, Pattern
from mixbackend.partitioner import place

RESHAPE, SQUEEZE, TRANSPOSE = "aten.reshape.default", "aten.squeeze.dim", "aten.t.default"
FREE = TableCosts(0, entries={"fast": 0.0, "eager": 0.0}, reads=0.0, writes=0.0, crossings=0.0)

PRODUCT = Op((MATMUL,), (Any("x"), Any("w")), part="product", reshaped=True)
ACTIVATED = Pattern("activated", Op((POINTWISE,), (PRODUCT,)), cost=lambda match: 0.0)
GATED = Pattern("gated", Op((BINARY,), (PRODUCT, Op((POINTWISE,), (PRODUCT,)))), cost=lambda match: 0.0)


def view(name: str, op: str, source: str) -> OpNode:
    return node(name, op, source, tags=(OpTag.VIEW,))


def matches(pattern: Pattern, nodes: list[OpNode], *outputs: str) -> list[tuple[str, ...]]:
    """Nodes of the matches that the planner took, the pattern being free and everything else dear."""
    backends = [TableBackend("fast", costs={"": 0.5}, claims=(pattern,)), eager(costs={"": 1.0})]
    plan = place(graph(nodes, list(outputs)), backends, FREE)
    return [names for region in plan.regions for _, names in region.matches]


def product(*rest: OpNode) -> list[OpNode]:
    return [node("p", MATMUL, "x0", "w0"), *rest]


def test_reshapes_become_part_of_the_match() -> None:
    nodes = product(view("r", RESHAPE, "p"), view("s", SQUEEZE, "r"), node("a", POINTWISE, "s"))
    assert matches(ACTIVATED, nodes, "a") == [("p", "r", "s", "a")]
    assert matches(ACTIVATED, product(node("a", POINTWISE, "p")), "a") == [("p", "a")]


def test_other_views_do_not_and_neither_do_reshapes_that_were_not_asked_for() -> None:
    assert matches(ACTIVATED, product(view("t", TRANSPOSE, "p"), node("a", POINTWISE, "t")), "a") == []
    plain = Pattern("plain", Op((POINTWISE,), (Op((MATMUL,), (Any("x"), Any("w"))),)), cost=lambda match: 0.0)
    assert matches(plain, product(view("r", RESHAPE, "p"), node("a", POINTWISE, "r")), "a") == []


def test_a_reshape_that_somebody_else_needs_ends_the_match() -> None:
    nodes = product(view("r", RESHAPE, "p"), node("a", POINTWISE, "r"))
    assert matches(ACTIVATED, nodes, "a", "r") == []
    assert matches(ACTIVATED, [*nodes, node("b", BINARY, "r", "a")], "a", "b") == []


def test_reshapes_of_an_input_lead_nowhere() -> None:
    assert matches(ACTIVATED, [view("r", RESHAPE, "x0"), node("a", POINTWISE, "r")], "a") == []


def test_one_part_twice_is_one_node() -> None:
    nodes = product(view("r", RESHAPE, "p"), node("a", POINTWISE, "r"), node("g", BINARY, "r", "a"))
    assert matches(GATED, nodes, "g") == [("p", "r", "a", "g")]
    other = product(node("q", MATMUL, "x0", "w0"), node("a", POINTWISE, "q"), node("g", BINARY, "p", "a"))
    assert matches(GATED, other, "g") == []


def test_one_part_is_reached_by_one_way() -> None:
    """Two reshapes of one product may have different shapes, which a fused form could not tell apart."""
    nodes = product(view("r", RESHAPE, "p"), view("s", RESHAPE, "p"), node("a", POINTWISE, "s"))
    assert matches(GATED, [*nodes, node("g", BINARY, "r", "a")], "g") == []
