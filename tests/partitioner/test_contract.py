"""How the partitioner asks backends, and what becomes of rules, patterns, conditions and faults."""

from __future__ import annotations

import pytest
from partitioner_cases import BINARY, MATMUL, POINTWISE, DecliningBackend, TableBackend, TableCosts, eager, graph, node

from mixbackend.contracts import (
    Any,
    NodeMatch,
    Op,
    OpTag,
    OpView,
    Pattern,
    PlacementError,
    Plan,
    Preference,
    RegionConditions,
    RegionSketch,
    Supported,
    Verdict,
)
from mixbackend.partitioner import place
from mixbackend.partitioner.explain import Question, savings

CHAIN = graph(
    [
        node("a", MATMUL, "x0", "w0", module="m.0", source="net.py:7 in forward"),
        node("b", POINTWISE, "a", module="m.1"),
        node("c", MATMUL, "b", "w0", module="m.2"),
    ],
    ["c"],
)
FREE = TableCosts(0, entries={"fast": 0.0, "eager": 0.0}, reads=0.0, writes=0.0, crossings=0.0)


def fast(**more: object) -> TableBackend:
    return TableBackend("fast", costs={"": 0.1}, **more)  # type: ignore[arg-type]


def slow_eager() -> TableBackend:
    return eager(costs={"": 1.0})


def owners(plan: Plan) -> dict[str, str]:
    return {name: region.backend for region in plan.regions for name in region.nodes}


def test_equal_ops_are_asked_about_once() -> None:
    nodes = [node(f"n{i}", POINTWISE, f"n{i - 1}" if i else "x0", module=f"layer.{i}") for i in range(9)]
    backend = fast()
    place(graph(nodes, ["n8"]), [backend, slow_eager()], FREE)
    assert len(backend.asked) == 1


def test_effects_go_to_the_backend_that_takes_them_without_asking_others() -> None:
    tags = (OpTag.RANDOM,)
    nodes = [node("a", "aten.bernoulli.p", "x0", tags=tags), node("b", "aten.bernoulli.p", "x0", tags=tags)]
    backend = fast()
    plan = place(graph(nodes, ["a", "b"], effects=(("a", "b"),)), [backend, slow_eager()], FREE)
    assert owners(plan) == {"a": "eager", "b": "eager"} and backend.asked == []
    assert [refusal.code for refusal in plan.refusals] == ["random", "random"]


def test_nobody_supports_an_op() -> None:
    with pytest.raises(PlacementError) as caught:
        place(CHAIN, [fast(refused=frozenset({"m.0"}))], FREE)
    for part in ("%a", MATMUL, "net.py:7", "fast: unknown-op no rule for aten.mm.default"):
        assert part in str(caught.value)


def test_no_backend_at_all() -> None:
    with pytest.raises(PlacementError, match="no backend to place on"):
        place(CHAIN, [], FREE)


@pytest.mark.parametrize("answer", [True, Supported(float("nan")), ValueError("boom")])
def test_a_faulty_judge_is_a_refusal(answer: object) -> None:
    class Faulty(TableBackend):
        def judge(self, view: OpView) -> Verdict:
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[return-value]

    plan = place(CHAIN, [Faulty("fast"), slow_eager()], FREE)
    assert set(owners(plan).values()) == {"eager"}
    assert {refusal.code for refusal in plan.refusals} == {"backend-error"}


def test_rules_first_match_wins() -> None:
    rules = [
        Preference(NodeMatch(module="m.1"), "require", "eager", origin="prefs.yaml:3"),
        Preference(NodeMatch(op="aten.*"), "require", "fast"),
    ]
    plan = place(CHAIN, [fast(), slow_eager()], FREE, preferences=rules)
    assert owners(plan) == {"a": "fast", "b": "eager", "c": "fast"}
    assert ("b", "fast", "preference") in {(item.node, item.backend, item.code) for item in plan.refusals}


def test_a_preference_scales_the_cost() -> None:
    near = eager(costs={"": 0.11})
    assert set(owners(place(CHAIN, [fast(), near], FREE)).values()) == {"fast"}
    rule = Preference(NodeMatch(), "prefer", "eager", factor=0.5)
    assert set(owners(place(CHAIN, [fast(), near], FREE, preferences=[rule])).values()) == {"eager"}


def test_a_rule_that_cannot_be_kept_is_an_error() -> None:
    rule = Preference(NodeMatch(module="m.1"), "require", "fast", origin="prefs.yaml:9")
    with pytest.raises(PlacementError, match=r"require fast \(prefs\.yaml:9\)"):
        place(CHAIN, [fast(refused=frozenset({"m.1"})), slow_eager()], FREE, preferences=[rule])


def test_unknown_pins_are_an_error() -> None:
    with pytest.raises(PlacementError, match="not in use: gone"):
        place(CHAIN, [fast()], FREE, pinned={"a": "gone"})


PAIR = Pattern(
    "pair",
    Op((POINTWISE,), (Op((MATMUL,), (Any("x"), Any("w")), part="product"),)),
    cost=lambda match: 0.01,
)


def test_a_pattern_is_one_label_and_may_hold_ops_that_are_refused_alone() -> None:
    plan = place(CHAIN, [fast(refused=frozenset({"m.0", "m.1", "m.2"}), claims=(PAIR,)), slow_eager()], FREE)
    assert owners(plan) == {"a": "fast", "b": "fast", "c": "eager"}
    assert plan.regions[0].matches == (("pair", ("a", "b")),)
    assert plan.optimal and plan.estimated_s == pytest.approx(1.01)


def test_a_pattern_whose_inside_is_needed_elsewhere_is_dropped_unless_it_may_escape() -> None:
    nodes = [node("a", MATMUL, "x0", "w0"), node("b", POINTWISE, "a"), node("c", BINARY, "a", "b")]
    escaping = Pattern("pair", PAIR.root, may_escape=frozenset({"product"}), cost=lambda match: 0.01)
    for pattern, taken in ((PAIR, 0), (escaping, 1)):
        plan = place(graph(nodes, ["c"]), [fast(claims=(pattern,)), slow_eager()], FREE)
        assert sum(len(region.matches) for region in plan.regions) == taken


def test_a_quarantined_op_ends_the_match() -> None:
    plan = place(CHAIN, [fast(claims=(PAIR,)), slow_eager()], FREE, exclusions=frozenset({("b", "fast")}))
    assert owners(plan)["b"] == "eager" and not any(region.matches for region in plan.regions)


def test_views_of_weights_and_constants_are_copied_into_their_readers() -> None:
    nodes = [
        node("t", "aten.t.default", "w0", tags=(OpTag.VIEW,)),
        node("one", "aten.full.default"),
        node("a", MATMUL, "x0", "t", module="m.0"),
        node("b", BINARY, "a", "one", module="m.1"),
        node("c", MATMUL, "b", "t", module="m.2"),
    ]
    nodes.append(node("d", BINARY, "c", "one", module="m.3"))
    rules = [
        Preference(NodeMatch(module="m.2"), "require", "eager"),
        Preference(NodeMatch(module="m.3"), "require", "eager"),
    ]
    plan = place(graph(nodes, ["d"]), [fast(), slow_eager()], FREE, preferences=rules)
    assert [(region.backend, region.nodes, region.copies) for region in plan.regions] == [
        ("fast", ("t", "one", "a", "b"), ()),
        ("eager", ("c", "d"), ("t", "one")),
    ]


def test_small_regions_go_to_the_next_best_backend_not_straight_to_eager() -> None:
    picky = fast(wanted=RegionConditions(minimum_ops=4))
    middle = TableBackend("middle", costs={"": 0.5})
    costs = TableCosts(0, dict.fromkeys(("fast", "middle", "eager"), 0.0), reads=0.0, writes=0.0, crossings=0.0)
    plan = place(CHAIN, [picky, middle, slow_eager()], costs)
    assert set(owners(plan).values()) == {"middle"}
    assert {item.code for item in plan.refusals if item.backend == "fast"} == {"region-too-small"}


def test_a_declined_region_goes_elsewhere_with_its_reason() -> None:
    plan = place(CHAIN, [DecliningBackend("fast", costs={"": 0.1}), slow_eager()], FREE)
    assert set(owners(plan).values()) == {"eager"}
    assert {(item.backend, item.code, item.detail) for item in plan.refusals} == {("fast", "declined", "3 ops")}


def test_conditions_that_nobody_meets_are_an_error() -> None:
    with pytest.raises(PlacementError, match="region-too-small"):
        place(CHAIN, [fast(wanted=RegionConditions(minimum_ops=4))], FREE)


def test_a_backend_prices_its_whole_region() -> None:
    class Knowing(TableBackend):
        def region_cost(self, sketch: RegionSketch) -> float | None:
            return 0.02

    plan = place(CHAIN, [Knowing("fast", costs={"": 0.1}), slow_eager()], FREE)
    assert plan.estimated_s == pytest.approx(0.02) and plan.lower_bound_s <= 0.02


def test_savings_name_the_refusal_that_costs_most() -> None:
    backends = [fast(refused=frozenset({"m.1"})), slow_eager()]
    costs = TableCosts(0, entries={"fast": 0.2, "eager": 0.2}, ops={("fast", ""): 0.1})
    plan = place(CHAIN, backends, costs)
    first, *_ = savings(Question(CHAIN, backends, costs, plan))
    assert (first.backend, first.code, first.op, first.nodes) == ("fast", "unknown-op", POINTWISE, ("b",))
    assert first.seconds > 0.2 and "fast" in str(first)


def test_a_mixture_must_promise_its_margin() -> None:
    """A few percent are less than estimates are worth; one backend alone has fewer surprises."""
    quick = TableBackend("quick", refused=frozenset({MATMUL}), costs={"": 0.095})
    nodes = [node("a", MATMUL, "x0", "w0"), node("b", POINTWISE, "a"), node("c", MATMUL, "b", "w0")]
    backends = [fast(), quick, slow_eager()]
    costs = TableCosts(0, entries={"fast": 0.0, "quick": 0.0, "eager": 0.0}, reads=0.0, writes=0.0, crossings=0.0)
    mixed = place(graph(nodes, ["c"]), backends, costs)
    assert owners(mixed) == {"a": "fast", "b": "quick", "c": "fast"}
    simple = place(graph(nodes, ["c"]), backends, costs, margin=0.04)
    assert set(owners(simple).values()) == {"fast"} and simple.estimated_s > mixed.estimated_s
    assert owners(place(graph(nodes, ["c"]), backends, costs, margin=0.01)) == owners(mixed)


def test_a_pattern_over_a_constant_that_a_rule_no_longer_lets_be_copied_is_given_up() -> None:
    """A small constant is made again in every region that reads it, until a rule says who makes it."""
    nodes = [
        node("ones", "aten.ones.default", module="m.c"),
        node("a", BINARY, "x0", "ones", module="m.0"),
        node("b", POINTWISE, "a", module="m.1"),
        node("other", BINARY, "x0", "ones", module="m.2"),
    ]
    added = Op((BINARY,), (Any("x"), Op(("aten.ones.default",), (), part="constant")), part="sum")
    whole = Pattern("whole", Op((POINTWISE,), (added,)), cost=lambda match: 0.01)
    backends = [fast(claims=(whole,)), slow_eager()]
    plan = place(graph(nodes, ["b", "other"]), backends, FREE)
    assert [match for region in plan.regions for match in region.matches] == [("whole", ("ones", "a", "b"))]
    rule = Preference(NodeMatch(module="m.c"), "forbid", "eager")
    plan = place(graph(nodes, ["b", "other"]), backends, FREE, preferences=[rule])
    assert set(owners(plan)) == {"ones", "a", "b", "other"} and owners(plan)["ones"] == "fast"
    assert not any(region.matches for region in plan.regions)
