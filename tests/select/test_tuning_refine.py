"""Refining: what measured regions teach the costs, and which further plans come of it."""

from __future__ import annotations

import pytest
import torch

from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import load_config
from mixbackend.contracts import OpGraph
from mixbackend.graph.describe import describe
from mixbackend.graph.trace import trace_graph
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.plan.planner import Planner
from mixbackend.select.candidates import content_of, find_candidates
from mixbackend.select.race import Candidate, Showing
from mixbackend.select.refine import MOST_PLANS, Refiner, corrections_of
from mixbackend.select.timings import RegionTiming


def layers(value, first, second):
    return torch.nn.functional.gelu(torch.nn.functional.gelu(value @ first) @ second)


@pytest.fixture
def mine(tmp_path) -> Planner:
    config = load_config({"backends": ["codegen", "onednn", "eager"], "cache": {"dir": str(tmp_path)}})
    return open_environment(config).planner


@pytest.fixture
def graph() -> OpGraph:
    module = trace_graph(layers, [torch.randn(64, 256), torch.randn(256, 256), torch.randn(256, 256)])[0]
    return describe(module, "inference", "tuning", {})


def names(graph: OpGraph, *ops: str) -> tuple[str, ...]:
    return tuple(f"{node.op}@{place}" for place, node in enumerate(graph.nodes) if node.op in ops)


def timing(backend: str, nodes: tuple[str, ...], estimated_s: float, measured_s: float) -> RegionTiming:
    return RegionTiming(backend, "as_traced", nodes, estimated_s, measured_s)


def showing(seconds: float, *timings: RegionTiming, choice: Choice = DEFAULT) -> Showing:
    return Showing(Candidate(choice, seconds), seconds, [item.to_dict() for item in timings])


MM, GELU = "aten.mm.default", "aten.gelu.default"


def test_what_a_region_took_beyond_its_estimate_is_shared_in_proportion(graph) -> None:
    products, gelus = names(graph, MM), names(graph, GELU)
    price = {MM: 3.0, GELU: 1.0}
    found = corrections_of(
        graph,
        [timing("codegen", (products[0], gelus[0]), 5.0, 13.0)],
        lambda backend, name: price[graph.node_by_name[name].op],
    )
    assert found == {("mm", "codegen"): 6.0, ("gelu", "codegen"): 2.0}


def test_the_smallest_region_with_an_op_counts(graph) -> None:
    everything, gelus = names(graph, MM, GELU), names(graph, GELU)
    timings = [
        timing("codegen", everything, 4.0, 8.0),
        timing("codegen", gelus[:1], 1.0, 1.5),
        timing("codegen", gelus[:1], 1.0, 1.7),
        timing("eager", gelus[:1], 1.0, 9.0),
    ]
    found = corrections_of(graph, timings, lambda backend, name: 1.0)
    assert found["gelu", "codegen"] == pytest.approx(0.6)
    assert found["mm", "codegen"] == found["gelu_1", "codegen"] == 1.0
    assert found["gelu", "eager"] == 8.0


def test_ops_without_estimates_share_evenly_and_unknown_nodes_are_left_out(graph) -> None:
    gelus = names(graph, GELU)
    found = corrections_of(graph, [timing("codegen", (*gelus, "other.op@77"), 0.0, 2.0)], lambda backend, name: 0.0)
    assert found == {("gelu", "codegen"): 1.0, ("gelu_1", "codegen"): 1.0}


def test_corrections_move_ops_to_where_they_were_measured_to_be_cheap(mine, graph) -> None:
    searched = mine.place(graph)
    owner = {name: region.backend for region in searched.regions for name in region.nodes}
    moved = "codegen" if owner["mm"] != "codegen" else "eager"
    taught = mine.place(graph, corrections={("mm", owner["mm"]): 1.0, ("mm", moved): -1.0})
    again = {name: region.backend for region in taught.regions for name in region.nodes}
    assert again["mm"] != owner["mm"]
    assert 0.0 < taught.estimated_s < 1.0, "no cost below zero"


def test_a_plan_that_promises_to_be_faster_is_the_next_candidate(mine, graph) -> None:
    candidates = find_candidates({"as_traced": graph}, mine)
    plan = mine.place(graph)
    slow = [timing(region.backend, names(graph, MM, GELU), region.estimated_s, 1.0) for region in plan.regions]
    refiner = Refiner({"as_traced": graph}, mine, ())
    candidate = refiner([showing(1.0, *slow)])
    assert candidate is not None and candidate.choice.plan is not None and candidate.choice.layout == ""
    fixed = mine.place(graph, choice=candidate.choice)
    assert fixed.search == "fixed" and fixed.estimated_s == candidate.estimated_s < 0.9
    assert {region.backend for region in fixed.regions}.isdisjoint(region.backend for region in plan.regions)
    assert content_of("as_traced", plan) in candidates
    assert refiner([showing(1.0, *slow)]) is None, "no plan is tried twice"


def test_a_plan_that_is_a_candidate_already_is_not_tried_again(mine, graph) -> None:
    assert Refiner({"as_traced": graph}, mine, find_candidates({"as_traced": graph}, mine))([showing(1.0)]) is None


def test_a_plan_that_promises_nothing_is_not_tried(mine, graph) -> None:
    assert Refiner({"as_traced": graph}, mine, ())([showing(1e-9)]) is None
    assert Refiner({"as_traced": graph}, mine, ())([]) is None


def test_there_is_an_end_to_it(mine, graph, monkeypatch) -> None:
    refiner = Refiner({"as_traced": graph}, mine, ())
    made = 0
    monkeypatch.setattr("mixbackend.select.refine.content_of", lambda layout, plan: (layout, frozenset({made})))
    while refiner([showing(1.0)]) is not None:
        made += 1
    assert made == MOST_PLANS


def test_timings_survive_json_and_bad_ones_are_refused() -> None:
    item = timing("codegen", ("aten.mm.default@3",), 0.5, 0.25)
    assert RegionTiming.from_dict(item.to_dict()) == item
    with pytest.raises((KeyError, TypeError, ValueError)):
        RegionTiming.from_dict({**item.to_dict(), "measured_s": "soon"})
    with pytest.raises(KeyError):
        RegionTiming.from_dict({"backend": "codegen"})
