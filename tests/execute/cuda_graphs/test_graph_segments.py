"""Which regions are recorded together, and why others are not; on fake tensors of a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import InputRole, NodeRef, OpNode, Plan, PlannedRegion, SymbolicSize
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.execute.cuda_graphs.graph_segments import cut_segments, describe_segments, device_of, obstacle_of
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph

aten = torch.ops.aten


def _tensors(*shapes, device="cuda"):
    mode = fresh_fake_mode()
    with mode:
        return [torch.empty(shape, device=device) for shape in shapes]


def _cut(function, inputs, roles=None, dynamic=False, each=1, phase="inference"):
    """A function's regions, of a few ops each."""
    module, graph = trace_graph(function, inputs, roles=roles, dynamic=dynamic, phase=phase)
    names = [node.name for node in graph.placed_nodes]
    groups = [names[place : place + each] for place in range(0, len(names), each)]
    planned = tuple(PlannedRegion(f"r{place}", "eager", tuple(group)) for place, group in enumerate(groups))
    return graph, cut_regions(module, graph, Plan(graph.id, graph.phase, graph.dynamic, planned))


def _obstacles(regions, static=frozenset(), **traits):
    mine = replace(EagerBackend().traits(), **traits)
    return [obstacle_of(bound, "eager", mine, static, 0, {}) for bound in regions]


def test_neighbours_become_one_piece():
    (value,) = _tensors((8, 8))
    graph, regions = _cut(lambda x: aten.relu(aten.sigmoid(aten.neg(x))), [value])
    (segment,) = cut_segments(graph, regions, _obstacles(regions), frozenset())
    assert segment.regions == (0, 1, 2)
    assert segment.inputs == (graph.inputs[0].name,)
    assert segment.outputs == tuple(graph.outputs)
    assert describe_segments([segment], regions) == "3 of 3 regions in 1 CUDA graphs"


def test_an_obstacle_splits_the_graph_and_keeps_the_order():
    (value,) = _tensors((8, 8))
    graph, regions = _cut(lambda x: aten.relu(aten.sigmoid(aten.neg(x))) + aten.neg(x), [value])
    obstacles = ["", "no", "", ""]
    segments = cut_segments(graph, regions, obstacles, frozenset())
    assert [segment.regions for segment in segments] == [(0,), (1,), (2, 3)]
    assert set(segments[2].inputs) == {regions[0].outputs[0], regions[1].outputs[0]}
    assert describe_segments(segments, regions) == "3 of 4 regions in 2 CUDA graphs; r1 between them: no"


def test_constants_are_no_inputs():
    value, weight = _tensors((8, 8), (8, 8))
    roles = {1: PlaceholderRole(InputRole.CONSTANT)}
    graph, regions = _cut(lambda x, w: aten.relu(aten.mm(x, w)), [value, weight], roles)
    given, constant = (item.name for item in graph.inputs)
    (segment,) = cut_segments(graph, regions, ["", ""], frozenset({constant}))
    assert segment.inputs == (given,)
    assert segment.constants == (constant,)


def test_a_size_that_is_read_off_a_result_begins_a_new_piece():
    (value,) = _tensors((8, 6))
    graph, regions = _cut(lambda x: aten.relu(aten.sigmoid(x)), [value])
    (made,) = regions[0].outputs
    length = SymbolicSize(sympy.Symbol("u0", integer=True), 8)
    numbers = (
        OpNode("length", "aten.sym_size.int", (("self", NodeRef(made)), ("dim", 0)), (length,)),
        OpNode("twice", "symbolic.mul", (("arg0", NodeRef("length")), ("arg1", 2)), (length,)),
    )
    graph = replace(graph, nodes=(graph.nodes[0], *numbers, *graph.nodes[1:]))
    sized = replace(regions[1], inputs=(*regions[1].inputs, "twice"))
    segments = cut_segments(graph, (regions[0], sized), ["", ""], frozenset())
    assert [segment.regions for segment in segments] == [(0,), (1,)]
    assert "twice" in segments[1].inputs
    assert len(cut_segments(graph, regions, ["", ""], frozenset())) == 1


def test_tensors_of_the_processor_are_an_obstacle():
    mode = fresh_fake_mode()
    with mode:
        value, host = torch.empty(8, device="cuda"), torch.empty((), device="cpu")
    _, regions = _cut(lambda x, y: aten.relu(aten.add(x, y)), [value, host])
    first, second = _obstacles(regions)
    assert first.endswith("is on cpu")
    assert second == ""


def test_who_cannot_be_recorded_says_so():
    (value,) = _tensors((8, 8))
    _, regions = _cut(lambda x: aten.relu(x), [value])
    assert _obstacles(regions, capturable=False) == ["eager cannot be recorded"]
    assert _obstacles(regions, uses_current_stream=False) == ["eager cannot be recorded"]


@pytest.mark.parametrize(("static", "free"), [(False, False), (True, True)])
def test_memory_that_is_written_must_stay_where_it_is(static, free):
    buffer, value = _tensors((8,), (8,))
    roles = {0: PlaceholderRole(InputRole.BUFFER)} if static else {}
    graph, regions = _cut(lambda b, x: aten.copy_(b, aten.relu(x)), [buffer, value], roles, each=9)
    names = frozenset(item.name for item in graph.inputs if item.role.is_weight)
    (found,) = _obstacles(regions, names)
    assert (found == "") is free
    assert free or "elsewhere at every call" in found


def test_results_that_are_views_of_what_comes_in_are_made_beside_the_recording():
    (value,) = _tensors((8, 8))
    graph, regions = _cut(lambda x: (aten.relu(x), aten.select(aten.t(x), 0, 1)), [value], phase="backward")
    assert _obstacles(regions) == [""] * len(regions)
    recorded, views = cut_segments(graph, regions, _obstacles(regions), frozenset())
    result, view = graph.outputs
    assert recorded.is_recorded and recorded.outputs == (result,)
    assert not views.is_recorded and views.outputs == (view,)
    assert views.inputs == recorded.inputs
    assert len(views.views) == 2 and views.views[-1] == view
    assert describe_segments([recorded, views], regions) == "3 of 3 regions in 1 CUDA graphs"


def test_views_of_what_a_recording_makes_and_of_weights_are_its_own():
    value, weight = _tensors((8, 8), (8, 8))
    roles = {1: PlaceholderRole(InputRole.BUFFER)}
    graph, regions = _cut(lambda x, w: (aten.t(aten.relu(x)), aten.t(w)), [value, weight], roles, phase="backward")
    (segment,) = cut_segments(graph, regions, _obstacles(regions), frozenset())
    assert set(segment.outputs) == set(graph.outputs)


def test_nothing_is_recorded_where_all_results_are_views():
    (value,) = _tensors((8, 8))
    graph, regions = _cut(lambda x: aten.t(x), [value], phase="backward")
    (segment,) = cut_segments(graph, regions, [""], frozenset())
    assert not segment.is_recorded and segment.outputs == tuple(graph.outputs)


def test_views_that_leave_the_graph_are_in_no_piece():
    """They are made of what comes in, by the stitched function: somebody may write into them."""
    (value,) = _tensors((8, 8))
    graph, regions = _cut(lambda x: aten.t(x), [value])
    assert cut_segments(graph, regions, [""], frozenset()) == ()
    graph, regions = _cut(lambda x: (aten.relu(x), aten.select(aten.t(x), 0, 1)), [value])
    (segment,) = cut_segments(graph, regions, _obstacles(regions), frozenset())
    assert segment.is_recorded and segment.outputs == graph.outputs[:1]


def test_what_is_written_as_well_is_recorded_though_all_results_are_views():
    value, buffer = _tensors((8,), (8,))
    roles = {1: PlaceholderRole(InputRole.BUFFER)}

    def function(x, b):
        aten.copy_(b, aten.relu(x))
        return aten.view(x, [2, 4])

    graph, regions = _cut(function, [value, buffer], roles, each=9, phase="backward")
    segments = cut_segments(graph, regions, [""], frozenset())
    assert [segment.is_recorded for segment in segments] == [True, False]
    assert segments[0].outputs == ()


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="torch makes no fake tensor on a second GPU where one is")
def test_only_graphs_of_one_gpu_are_recorded():
    (value,) = _tensors((8,))
    graph, _ = _cut(lambda x: aten.relu(x), [value])
    assert device_of(graph) == 0
    assert device_of(_cut(lambda x: aten.relu(x), [torch.ones(3)])[0]) is None
    mode = fresh_fake_mode()
    with mode:
        other = torch.empty(8, device="cuda:1")
    assert device_of(_cut(lambda x: aten.relu(x), [other])[0]) == 1
