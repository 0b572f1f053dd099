"""Patterns beyond trees: reshapes on the way, and one part that is used several times."""

from __future__ import annotations

from partitioner_cases import BINARY, MATMUL, POINTWISE, TableBackend, TableCosts, eager, graph, node

from mixbackend.contracts import Any, Estimate, Match, Op, OpNode, OpTag, OpView, Pattern, Supported
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


COPY = "aten.clone.default"
FREED = Pattern("freed", Op((MATMUL,), (Any("x", behind=(COPY, RESHAPE)), Any("w"))), cost=lambda match: 0.0)
PASSED = Pattern(
    "passed", Op((POINTWISE,), (Op((MATMUL,), (Any("x"), Any("w")), behind=(COPY,)),)), cost=lambda match: 0.0
)


def test_copies_in_front_of_a_value_become_part_of_the_match() -> None:
    nodes = [node("a", POINTWISE, "x0"), node("c", COPY, "a"), node("d", COPY, "c"), node("p", MATMUL, "d", "w0")]
    assert matches(FREED, nodes, "p") == [("c", "d", "p")]
    assert matches(FREED, nodes, "p", "c") == [("d", "p")], "somebody else needs the first copy"
    assert matches(FREED, nodes, "p", "d") == [("p",)]


def test_views_in_front_of_the_first_copy_stay_outside() -> None:
    nodes = [node("a", POINTWISE, "x0"), view("r", RESHAPE, "a"), node("c", COPY, "r"), view("s", RESHAPE, "c")]
    nodes = [*nodes, node("p", MATMUL, "s", "w0")]
    assert matches(FREED, nodes, "p") == [("c", "s", "p")]


def test_a_part_may_stand_behind_copies_and_nobody_else_may_need_them() -> None:
    nodes = product(node("c", COPY, "p"), node("a", POINTWISE, "c"))
    assert matches(PASSED, nodes, "a") == [("p", "c", "a")]
    assert matches(PASSED, nodes, "a", "c") == []


def test_a_check_sees_what_was_passed_and_the_value() -> None:
    seen: list[Match] = []

    def check(match: Match) -> Supported:
        seen.append(match)
        return Supported()

    nodes = [node("a", POINTWISE, "x0"), node("c", COPY, "a"), node("p", MATMUL, "c", "w0")]
    matches(Pattern("seen", FREED.root, check, cost=lambda match: 0.0), nodes, "p")
    assert [item.node.name for item in seen[0].through("x")] == ["c"]
    assert dict(seen[0].bindings)["x"] == "a"
    assert seen[0].through("w") == ()


def test_a_match_may_be_priced_as_another_op() -> None:
    nodes = product(node("a", POINTWISE, "p"))
    for price, taken in ((0.1, [("p", "a")]), (9.0, [])):
        dear = Pattern("dear", ACTIVATED.root, priced_as=lambda match: match.part("product"))
        backends = [TableBackend("fast", claims=(dear,)), eager(costs={"": 1.0})]
        plan = place(graph(nodes, ["a"]), backends, _Priced(price))
        assert [names for region in plan.regions for _, names in region.matches] == taken


class _Priced(TableCosts):
    """Ops of the backend with the pattern cost this much, those of eager one second."""

    def __init__(self, seconds: float) -> None:
        super().__init__(0, entries={"fast": 0.0, "eager": 0.0}, reads=0.0, writes=0.0, crossings=0.0)
        self._seconds = seconds

    def op(self, backend: str, view: OpView) -> Estimate:
        return Estimate(self._seconds if backend == "fast" else 1.0, "prior")
