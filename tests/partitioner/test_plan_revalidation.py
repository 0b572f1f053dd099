"""Plans that were made before, held against graphs, backends and rules of now."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mixbackend.backends.codegen import CodegenBackend
from mixbackend.backends.eager import EagerBackend
from mixbackend.backends.onednn import OneDnnBackend
from mixbackend.contracts import NodeMatch, OpGraph, OpView, Plan, PlannedRegion, Preference, Verdict
from mixbackend.graph.describe import describe
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner.judging import judge
from mixbackend.partitioner.matching import find_claims
from mixbackend.partitioner.plan_canonical import canonical_plan
from mixbackend.partitioner.plan_revalidation import MisfitError, revalidated_plan, with_refusals

BACKENDS = (CodegenBackend(), OneDnnBackend(), EagerBackend())


def layer(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.relu(torch.addmm(bias, value, weight)).tan()


def traced() -> OpGraph:
    module, _ = trace_graph(layer, [torch.randn(4, 8), torch.randn(8, 16), torch.randn(16)])
    return describe(module, "inference", "g", {})


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return traced()


def plan_of(graph: OpGraph, *regions: PlannedRegion) -> Plan:
    return canonical_plan(Plan(graph.id, "inference", False, regions, estimated_s=1.0), graph)


def misfits(graph: OpGraph, plan: Plan, *preferences: Preference) -> list[str]:
    with pytest.raises(MisfitError) as caught:
        revalidated_plan(graph, plan, BACKENDS, preferences)
    assert all(problem in caught.value.what for problem in caught.value.problems)
    return list(caught.value.problems)


LINEAR = ("addmm", "relu")
MATCHED = PlannedRegion("r0", "onednn", LINEAR, matches=(("addmm_relu", LINEAR),))
TAN = PlannedRegion("r1", "codegen", ("tan",))


def pattern_name() -> str:
    """Of the pattern that holds a product and a relu."""
    judged = judge(traced(), BACKENDS, frozenset())
    claims = find_claims(judged, BACKENDS, frozenset(), {}, frozenset())
    return next(claim.match.pattern for claim in claims if claim.match.nodes == LINEAR and claim.backend == 1)


@pytest.fixture(scope="module")
def matched() -> PlannedRegion:
    return replace(MATCHED, matches=((pattern_name(), LINEAR),))


def test_a_plan_that_holds_says_what_others_refuse(graph: OpGraph, matched: PlannedRegion) -> None:
    plan = revalidated_plan(graph, plan_of(graph, matched, TAN), BACKENDS)
    assert [(region.backend, region.nodes) for region in plan.regions] == [("onednn", LINEAR), ("codegen", ("tan",))]
    assert (plan.graph_id, plan.search, plan.estimated_s) == ("g", "fixed", 1.0)
    plan = with_refusals(graph, plan, BACKENDS)
    assert with_refusals(graph, plan, ()) is plan, "they are asked for once"
    refused = {(refusal.node, refusal.backend) for refusal in plan.refusals}
    assert ("tan", "onednn") in refused and ("addmm", "codegen") in refused
    assert ("relu", "onednn") not in refused, "whoever runs an op does not refuse it"


@pytest.mark.parametrize("rules", [(), (Preference(NodeMatch(), "prefer", "silent", 0.1),)], ids=["none", "preferring"])
def test_backends_that_have_no_part_in_a_plan_are_not_asked(
    graph: OpGraph, matched: PlannedRegion, rules: tuple[Preference, ...]
) -> None:
    class Silent(EagerBackend):
        name = "silent"

        def judge(self, view: OpView) -> Verdict:
            raise AssertionError("nobody reads what it refuses")

    given = (*BACKENDS, Silent())
    plan = revalidated_plan(graph, plan_of(graph, matched, TAN), given, rules)
    assert plan.refusals == ()
    refused = {
        (item.node, item.code) for item in with_refusals(graph, plan, given).refusals if item.backend == "silent"
    }
    assert refused == {("addmm", "backend-error"), ("relu", "backend-error"), ("tan", "backend-error")}


def test_an_op_that_is_supported_only_in_its_pattern(graph: OpGraph, matched: PlannedRegion) -> None:
    (problem,) = misfits(graph, plan_of(graph, replace(matched, matches=()), TAN))
    assert problem.startswith("r0: onednn refuses aten.relu.default %relu: ")


def test_a_pattern_that_does_not_fit_any_more(graph: OpGraph, matched: PlannedRegion) -> None:
    other = replace(matched, matches=(("no_such_pattern", LINEAR),))
    found = misfits(graph, plan_of(graph, other, TAN))
    assert found[0] == "r0: pattern no_such_pattern of onednn does not fit aten.addmm.default %addmm, " + (
        "aten.relu.default %relu any more"
    )
    assert len(found) == 2 and "refuses aten.relu.default" in found[1]


def test_rules_hold_for_ops_of_patterns_too(graph: OpGraph, matched: PlannedRegion) -> None:
    forbid = Preference(NodeMatch(op="aten.relu"), "forbid", "onednn", origin="prefs.yaml:3")
    (problem,) = misfits(graph, plan_of(graph, matched, TAN), forbid)
    assert "onednn refuses aten.relu.default" in problem
    require = Preference(NodeMatch(op="aten.tan"), "require", "eager", origin="prefs.yaml:4")
    (problem,) = misfits(graph, plan_of(graph, matched, TAN), require)
    assert problem == "r1: codegen refuses aten.tan.default %tan: preference require eager (prefs.yaml:4)"
    liked = Preference(NodeMatch(op="aten.tan"), "prefer", "eager", 0.1)
    assert revalidated_plan(graph, plan_of(graph, matched, TAN), BACKENDS, (liked,)).regions[1].backend == "codegen"


def test_every_stranger_and_every_missing_backend_is_named(graph: OpGraph, matched: PlannedRegion) -> None:
    plan = plan_of(graph, matched, TAN)
    first, second = plan.regions
    plan = replace(plan, regions=(replace(first, nodes=("aten.mm.default@0", *first.nodes)), second))
    with pytest.raises(MisfitError) as caught:
        revalidated_plan(graph, plan, BACKENDS[1:])
    assert caught.value.problems == (
        "r0 holds aten.mm.default@0, which the graph does not have there",
        "r1 needs codegen, which cannot be used here",
    )


def test_an_order_that_cannot_be_run(graph: OpGraph, matched: PlannedRegion) -> None:
    assert misfits(graph, plan_of(graph, TAN, matched)) == ["r0 is listed after r1, which needs it"]


def test_only_patterns_of_the_plan_are_looked_for(graph: OpGraph, matched: PlannedRegion) -> None:
    judged = judge(graph, BACKENDS, frozenset())
    planned = frozenset((matched.backend, pattern) for pattern, _ in matched.matches)
    found = find_claims(judged, BACKENDS, frozenset(), {}, frozenset(), planned)
    assert [(claim.match.pattern, claim.match.nodes) for claim in found] == list(matched.matches)
    assert find_claims(judged, BACKENDS, frozenset(), {}, frozenset(), frozenset()) == ()
