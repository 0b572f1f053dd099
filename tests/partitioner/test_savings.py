"""What lifting refusals would save, against brute force."""

from __future__ import annotations

import pytest
from brute_force import least_energy
from partitioner_cases import MATMUL, POINTWISE, TableBackend, TableCosts, eager, graph, node, random_case

from mixbackend.contracts import OpTag, RegionConditions, Unsupported
from mixbackend.partitioner import place
from mixbackend.partitioner.explain import Question, savings, single_savings
from mixbackend.partitioner.judging import judge
from mixbackend.partitioner.placement import make_problem
from mixbackend.partitioner.step_clock import StepClock


def least_with(question: Question, lifted: frozenset[tuple[str, str]]) -> float:
    graph, backends, costs = question.graph, question.backends, question.costs
    return least_energy(make_problem(graph, backends, costs, (), frozenset(), {}, StepClock(), None, lifted))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("block", range(3))
def test_savings_against_brute_force(block: int) -> None:
    """With everything tried and every search exact: the same seconds, and the same refusal first."""
    checked = 0
    for seed in range(25 * block, 25 * block + 25):
        op_graph, backends, costs = random_case(seed, most=6)
        question = Question(op_graph, backends, costs, place(op_graph, backends, costs))
        least = least_with(question, frozenset())
        groups = savings(question, tried=99)
        for group in groups:
            lifted = frozenset((name, group.backend) for name in group.nodes)
            # A constant that everybody may make is copied into its readers, which can be dearer: nothing is saved then.
            saved = max(0.0, least - least_with(question, lifted))
            assert group.seconds <= saved + question.plan.estimated_s - least + 1e-9
            checked += group.seconds == pytest.approx(saved, abs=1e-9)
        pairs = {(item.node, item.backend) for item in question.plan.refusals}
        best = max((least - least_with(question, frozenset({pair})) for pair in pairs), default=0.0)
        singles = single_savings(question, groups, tried=99)
        found = singles[0].seconds if singles else 0.0
        assert not question.plan.optimal or found == pytest.approx(best, abs=1e-9), seed
    assert checked > 30


ENTRIES = {"fast": 0.3, "eager": 0.5}
FREE = TableCosts(0, ENTRIES, ops={("fast", ""): 0.1}, reads=0.0, writes=0.0, crossings=0.0)


def two_products() -> Question:
    """The backend refuses all activations; only the one between two of its regions is worth much."""
    nodes = [
        node("a", MATMUL, "x0", "w0", module="m.0"),
        node("b", POINTWISE, "a", module="act.0"),
        node("c", MATMUL, "b", "w0", module="m.1"),
        node("d", "aten.view.default", "c", tags=(OpTag.VIEW,)),
        node("e", POINTWISE, "d", module="act.1"),
    ]
    backends = [TableBackend("fast", refused=frozenset({POINTWISE}), costs={"": 0.1}), eager(costs={"": 1.0})]
    op_graph = graph(nodes, ["e"])
    return Question(op_graph, backends, FREE, place(op_graph, backends, FREE))


def test_one_refusal_of_a_group_is_told_apart() -> None:
    question = two_products()
    (group,) = savings(question)
    assert group.nodes == ("b", "e") and "2 nodes" in str(group)
    first, *_ = single_savings(question, [group])
    assert first.nodes == ("b",) and "%b alone" in str(first)
    # Both ops are 0.9 cheaper there; b saves the entries of eager's region and of the second of fast's, e that of one.
    assert first.seconds == pytest.approx(0.9 + 0.5 + 0.3) and group.seconds == pytest.approx(2 * 0.9 + 2 * 0.5 + 0.3)
    assert first.to_dict()["nodes"] == ["b"] and first.to_dict()["saves_s"] == first.seconds


def test_a_group_of_one_is_its_own_single_and_is_not_placed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("a", MATMUL, "x0", "w0"), node("b", POINTWISE, "a"), node("c", MATMUL, "b", "w0")]
    backends = [TableBackend("fast", refused=frozenset({POINTWISE}), costs={"": 0.1}), eager(costs={"": 1.0})]
    op_graph = graph(nodes, ["c"])
    question = Question(op_graph, backends, FREE, place(op_graph, backends, FREE))
    groups = savings(question)
    monkeypatch.setattr("mixbackend.partitioner.explain.place", None)
    assert single_savings(question, groups) == groups


def test_few_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    op_graph, backends, costs = random_case(7, most=30)
    question = Question(op_graph, backends, costs, place(op_graph, backends, costs))
    tried: list[frozenset[tuple[str, str]]] = []

    def counting(*arguments: object, **options: object) -> object:
        tried.append(options["lifted"])  # type: ignore[arg-type]
        return place(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("mixbackend.partitioner.explain.place", counting)
    groups = savings(question, tried=2)
    assert len(groups) == 2 and len([lifted for lifted in tried if lifted]) == 2
    tried.clear()
    single_savings(question, groups, tried=1)
    assert len([lifted for lifted in tried if lifted]) <= 1


def test_what_was_not_searched_for_is_held_against_the_search() -> None:
    """A plan on eager alone is dear, but no refusal is the reason."""
    question = two_products()
    plan = place(question.graph, question.backends, FREE, single="eager")
    alone = Question(question.graph, question.backends, FREE, plan)
    assert plan.estimated_s > question.plan.estimated_s
    assert savings(alone)[0].seconds == pytest.approx(savings(question)[0].seconds)


def test_conditions_of_regions_are_not_lifted() -> None:
    picky = TableBackend("fast", costs={"": 0.1}, wanted=RegionConditions(minimum_ops=9))
    op_graph = graph([node("a", MATMUL, "x0", "w0")], ["a"])
    backends = [picky, eager(costs={"": 1.0})]
    plan = place(op_graph, backends, FREE)
    assert [item.code for item in plan.refusals] == ["region-too-small"]
    assert savings(Question(op_graph, backends, FREE, plan)) == ()


def test_lifting_concerns_the_named_pairs_alone() -> None:
    nodes = [node("a", POINTWISE, "x0"), node("b", POINTWISE, "a"), node("g", "getitem", "b")]
    refusing = TableBackend("fast", refused=frozenset({POINTWISE}))
    judged = judge(graph(nodes, ["g"]), [refusing], frozenset(), frozenset({("b", "fast")}))
    kinds = {name: isinstance(verdicts[0], Unsupported) for name, verdicts in judged.verdicts.items()}
    assert kinds == {"a": True, "b": False, "g": False}
