"""Which exchanges among ranks are recorded, and that each is in one recording or in none; on fake tensors of a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import Plan, PlannedRegion, check_plan
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.execute.cuda_graphs import collectives
from mixbackend.execute.cuda_graphs.collectives import blocked_nodes, exchanges_of
from mixbackend.execute.cuda_graphs.eager_splitting import split_eager_regions
from mixbackend.execute.cuda_graphs.graph_segments import cut_segments, describe_segments, obstacle_of
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
GROUP, OTHER, SLOW = "tensor", "data", "slow"


@pytest.fixture(autouse=True)
def groups(monkeypatch):
    """Two groups are NCCL's."""
    monkeypatch.setattr(
        collectives,
        "why_group_is_not_recorded",
        lambda name, device: "" if name in (GROUP, OTHER) else f"process group {name} is not NCCL's",
    )


def _reduced(value, group=GROUP):
    return c10d.all_reduce(value, "sum", group)


def _begun_and_waited(value, group=GROUP):
    return c10d.wait_tensor(_reduced(value, group))


def _traced(function, *shapes):
    with fresh_fake_mode():
        inputs = [torch.empty(shape, device="cuda") for shape in shapes or [(8, 8)]]
    return trace_graph(function, inputs)


def _ops(graph, exchange):
    return [graph.node_by_name[name].op.split(".")[1] for name in exchange.nodes]


def _segments(function, *shapes, obstacles=(), each=1):
    """Segments with regions of a few ops each; regions with these numbers have an obstacle."""
    module, graph = _traced(function, *shapes)
    names = [node.name for node in graph.placed_nodes]
    groups = [tuple(names[place : place + each]) for place in range(0, len(names), each)]
    planned = tuple(PlannedRegion(f"r{place}", "eager", group) for place, group in enumerate(groups))
    regions = cut_regions(module, graph, Plan(graph.id, graph.phase, graph.dynamic, planned))
    exchanges = exchanges_of(graph, 0)
    blocked, traits = blocked_nodes(exchanges), EagerBackend().traits()
    found = [
        "no" if number in obstacles else obstacle_of(region, "eager", traits, frozenset(), 0, blocked)
        for number, region in enumerate(regions)
    ]
    return cut_segments(graph, regions, found, frozenset(), exchanges), regions


def test_a_graph_without_collectives_has_no_exchange():
    _, graph = _traced(lambda value: aten.relu(value))
    assert exchanges_of(graph, 0) == ()


def test_beginning_views_and_waiting_are_one_exchange():
    _, graph = _traced(lambda value: aten.relu(c10d.wait_tensor(aten.view(_reduced(aten.neg(value)), [64]))))
    (exchange,) = exchanges_of(graph, 0)
    assert _ops(graph, exchange) == ["all_reduce", "reshape", "wait_tensor"]
    assert exchange.obstacle == ""


@pytest.mark.parametrize(
    "collective",
    [
        lambda value: c10d.all_gather_into_tensor(value, 2, GROUP),
        lambda value: c10d.reduce_scatter_tensor(value, "sum", 2, GROUP),
        lambda value: c10d.all_to_all_single(value, [4, 4], [4, 4], GROUP),
        lambda value: c10d.broadcast(value, 0, GROUP),
    ],
)
def test_collectives_of_all_ranks_of_a_group_are_recorded(collective):
    segments, _ = _segments(lambda value: aten.relu(c10d.wait_tensor(collective(aten.neg(value)))))
    assert [segment.is_recorded for segment in segments] == [True]
    assert segments[0].groups == {GROUP}


def test_neighbours_of_collectives_are_recorded_with_them():
    segments, regions = _segments(lambda value: aten.relu(_begun_and_waited(aten.mm(value, value))))
    (segment,) = segments
    assert segment.regions == (0, 1, 2, 3)
    assert describe_segments(segments, regions) == "4 of 4 regions in 1 CUDA graphs"


def test_segments_without_collectives_have_no_groups():
    segments, _ = _segments(lambda value: aten.relu(aten.neg(value)))
    assert [segment.groups for segment in segments] == [frozenset()]


@pytest.mark.parametrize("each", [1, 2, 9])
def test_a_group_that_is_not_of_nccl_is_an_obstacle(each):
    segments, _ = _segments(lambda value: aten.relu(_begun_and_waited(aten.neg(value), SLOW)), each=each)
    blocked = [segment for segment in segments if segment.obstacle]
    assert blocked and all("is not NCCL's" in segment.obstacle for segment in blocked)
    assert not any(segment.groups for segment in segments if segment.is_recorded)


def test_what_is_waited_for_in_another_recording_is_in_none():
    def function(value):
        begun = _reduced(aten.neg(value))
        between = aten.sigmoid(value)
        return aten.relu(c10d.wait_tensor(begun)), between

    # neg, all_reduce, sigmoid, wait_tensor, relu
    segments, _ = _segments(function, obstacles={2})
    recorded = [segment.regions for segment in segments if segment.is_recorded]
    assert recorded == [(0,), (4,)]
    assert sum("is elsewhere" in segment.obstacle for segment in segments) == 2
    assert [segment.regions for segment in _segments(function)[0]] == [(0, 1, 2, 3, 4)]


def test_an_exchange_whose_wait_cannot_be_recorded_is_in_no_recording():
    segments, _ = _segments(lambda value: aten.relu(_begun_and_waited(aten.neg(value))), obstacles={2})
    assert [segment.regions for segment in segments if segment.is_recorded] == [(0,), (3,)]


def test_tearing_one_exchange_may_tear_another():
    def function(value):
        first = _reduced(aten.neg(value))
        second = _reduced(aten.sigmoid(value))
        first = aten.relu(c10d.wait_tensor(first))
        return c10d.wait_tensor(second), first

    # neg, all_reduce, sigmoid, all_reduce, wait_tensor, relu, wait_tensor: the wait of the first cannot be recorded.
    segments, _ = _segments(function, obstacles={4})
    assert [segment.regions for segment in segments if segment.is_recorded] == [(0,), (2,), (5,)]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda value: _reduced(aten.neg(value)), ["is waited for outside of the graph"]),
        (lambda value: aten.relu(_reduced(value)), ["is waited for outside of the graph"]),
        (lambda value: aten.relu(c10d.wait_tensor(value)), ["waits for what was begun outside of the graph"]),
        (
            lambda value: _begun_and_waited(_reduced(value)),
            ["is sent on before it is waited for", "sends what is still on its way"],
        ),
    ],
)
def test_an_exchange_with_one_end_is_not_recorded(function, told):
    _, graph = _traced(function)
    obstacles = [exchange.obstacle for exchange in exchanges_of(graph, 0)]
    assert len(obstacles) == len(told)
    assert all(text in obstacle for text, obstacle in zip(told, obstacles, strict=True))


def test_each_of_several_tensors_is_waited_for():
    def function(waited):
        def inner(first, second):
            parts = c10d.all_reduce_coalesced([first, second], "sum", GROUP)
            return [c10d.wait_tensor(part) for part in itertools.compress(parts, waited)]

        return inner

    _, graph = _traced(function([True, True]), (4,), (5,))
    (exchange,) = exchanges_of(graph, 0)
    assert exchange.obstacle == ""
    assert len(exchange.nodes) == 5
    _, graph = _traced(function([True, False]), (4,), (5,))
    (exchange,) = exchanges_of(graph, 0)
    assert "is not waited for" in exchange.obstacle


def test_groups_that_work_at_once_are_not_recorded():
    def function(value):
        begun = [_reduced(value, group) for group in (GROUP, OTHER)]
        return [c10d.wait_tensor(item) for item in begun]

    _, graph = _traced(function)
    assert ["beside one of another group" in item.obstacle for item in exchanges_of(graph, 0)] == [True, True]
    _, graph = _traced(lambda value: _begun_and_waited(_begun_and_waited(value, GROUP), OTHER))
    assert [item.obstacle for item in exchanges_of(graph, 0)] == ["", ""]


def _split(function):
    _, graph = _traced(function)
    names = tuple(node.name for node in graph.placed_nodes)
    plan = Plan(graph.id, graph.phase, graph.dynamic, (PlannedRegion("r0", "eager", names, estimated_s=1e-3),))
    made = split_eager_regions(graph, plan, {"eager"}, 0)
    check_plan(graph, made, {"eager"})
    return [[graph.node_by_name[name].op.split(".")[1] for name in region.nodes] for region in made.regions]


def test_eager_regions_with_collectives_that_can_be_recorded_stay_whole():
    assert _split(lambda value: aten.relu(_begun_and_waited(aten.neg(value)))) == [
        ["neg", "all_reduce", "wait_tensor", "relu"]
    ]


def test_eager_regions_are_cut_around_collectives_that_cannot():
    assert _split(lambda value: aten.relu(_begun_and_waited(aten.neg(value), SLOW))) == [
        ["neg"],
        ["all_reduce", "wait_tensor"],
        ["relu"],
    ]


def test_eager_regions_are_cut_around_exchanges_with_something_else_inside():
    def function(value):
        begun = _reduced(aten.neg(value))
        between = aten._to_copy(value, device=torch.device("cpu"))
        return aten.relu(c10d.wait_tensor(begun)), between

    assert _split(function) == [["neg"], ["all_reduce", "_to_copy", "wait_tensor"], ["relu"]]
