"""Eager's regions are cut where a CUDA graph would end; on fake tensors of a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mixbackend.contracts import Plan, PlannedRegion, check_plan
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.execute.cuda_graphs.eager_splitting import split_eager_regions
from mixbackend.graph.trace import trace_graph

aten = torch.ops.aten


def _planned(function, backend="eager", device="cuda"):
    with fresh_fake_mode():
        value, host = torch.empty(8, 8, device=device), torch.empty(3)
    _, graph = trace_graph(function, [value, host])
    names = tuple(node.name for node in graph.placed_nodes)
    region = PlannedRegion("r0", backend, names, estimated_s=1e-3)
    return graph, Plan(graph.id, graph.phase, graph.dynamic, (region,))


def _mixed(value, host):
    moved = aten._to_copy(aten.sum(host), device=torch.device("cuda:0"))
    return aten.sigmoid(aten.add(aten.relu(value), moved))


def test_what_the_processor_computes_is_a_region_of_its_own():
    graph, plan = _planned(_mixed)
    made = split_eager_regions(graph, plan, {"eager"}, 0)
    check_plan(graph, made, {"eager"})
    assert [region.id for region in made.regions] == [f"r{place}" for place in range(len(made.regions))]
    assert [name for region in made.regions for name in region.nodes] == list(plan.regions[0].nodes)
    places = {name: place for place, region in enumerate(made.regions) for name in region.nodes}
    ops = {node.op: node.name for node in graph.placed_nodes}
    assert places[ops["aten.sum.default"]] == places[ops["aten._to_copy.default"]]
    assert places[ops["aten.sum.default"]] != places[ops["aten.relu.default"]]
    assert places[ops["aten.add.Tensor"]] == places[ops["aten.sigmoid.default"]]
    assert sum(region.estimated_s for region in made.regions) == pytest.approx(1e-3)


def test_regions_of_others_stay_whole():
    graph, plan = _planned(_mixed, backend="inductor")
    assert split_eager_regions(graph, plan, {"eager"}, 0) is plan


def test_regions_that_can_be_recorded_stay_whole():
    graph, plan = _planned(lambda value, host: aten.relu(aten.sigmoid(value)))
    assert split_eager_regions(graph, plan, {"eager"}, 0) is plan


def test_regions_with_patterns_stay_whole():
    graph, plan = _planned(_mixed)
    names = plan.regions[0].nodes
    matched = replace(plan, regions=(replace(plan.regions[0], matches=(("all", names),)),))
    assert split_eager_regions(graph, matched, {"eager"}, 0) is matched


def test_results_that_are_taken_apart_stay_with_what_made_them():
    def function(value, host):
        values, places = aten.sort(host)
        return aten.relu(value), values, places

    graph, plan = _planned(function)
    made = split_eager_regions(graph, plan, {"eager"}, 0)
    check_plan(graph, made, {"eager"})
    homes = {name: region.id for region in made.regions for name in region.nodes}
    ops = {node.op: node.name for node in graph.placed_nodes}
    assert homes[ops["getitem"]] == homes[ops["aten.sort.default"]] != homes[ops["aten.relu.default"]]
