"""When a placed graph is recorded and replayed, and what happens where recording fails.

Torch's recording is stood in for: the first call warms up, the second records, and what a function may not do then
raises.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import CompiledRegion, InputRole, Plan, PlannedRegion
from mixbackend.execute.answers import ExecutionPolicy
from mixbackend.execute.cuda_graphs import recorded
from mixbackend.execute.cuda_graphs.recorded import MOST_SIZES, RecordedGraph, RecordingSource
from mixbackend.execute.region_code import RegionCode
from mixbackend.execute.region_executor import RegionExecutor
from mixbackend.execute.stitch import stitch
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.regions import cut_regions
from mixbackend.graph.trace import trace_graph

aten = torch.ops.aten


class Recordings:
    """Stands in for torch."""

    def __init__(self):
        self.made = []
        self.inside = False
        self.recording = False
        self.backward = 0

    def record(self, function, names, results, static, device, phase, constants=()):
        states = {"calls": 0, "names": tuple(names), "static": tuple(static), "constants": len(constants)}
        self.made.append(states)

        def run(inputs):
            states["calls"] += 1
            self.recording, self.inside = states["calls"] == 2, True
            try:
                made = function(inputs)
            finally:
                self.recording = self.inside = False
            assert inputs == []
            assert len(made) == results
            return made

        return run


class Strict(EagerBackend):
    """Eager, whose regions are verified, raise while recorded if they are to, and keep something of each size.

    ``kept`` says for each region and size whether that was made in the memory of a graph.
    """

    name = "strict"

    def __init__(self, recordings, stubborn=()):
        self.recordings = recordings
        self.stubborn = stubborn
        self.ran = []
        self.kept = {}

    def compile(self, region):
        inner = super().compile(region).run
        ops = [view.op for view in region.views]

        def run(inputs):
            self.ran.append(region.id)
            self.kept.setdefault((region.id, *inputs[0].shape), self.recordings.inside)
            if self.recordings.recording and any(op in self.stubborn for op in ops):
                raise RuntimeError("operation not permitted when stream is capturing\nmore")
            return inner(inputs)

        return CompiledRegion(run)


@pytest.fixture
def recordings(monkeypatch):
    stand_in = Recordings()
    monkeypatch.setattr(recorded, "cuda_graph_recorded", stand_in.record)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: stand_in.recording)
    monkeypatch.setattr(
        recorded, "cuda_graphs_enter_backward", lambda device: setattr(stand_in, "backward", stand_in.backward + 1)
    )
    return stand_in


def _graph(
    recordings,
    monkeypatch,
    function,
    *inputs,
    stubborn=(),
    obstacles=None,
    constants=(),
    dynamic=False,
    verify="off",
    phase="inference",
    trial=False,
):
    """A function as a recorded graph with one region per op."""
    roles = {place: PlaceholderRole(InputRole.CONSTANT) for place in constants}
    module, graph = trace_graph(function, inputs, roles=roles, dynamic=dynamic, phase=phase)
    names = [node.name for node in graph.placed_nodes]
    planned = tuple(PlannedRegion(f"r{place}", "strict", (name,)) for place, name in enumerate(names))
    regions = cut_regions(module, graph, Plan(graph.id, graph.phase, graph.dynamic, planned))
    backend = Strict(recordings, stubborn)
    # Eager itself is not verified.
    traits = replace(EagerBackend().traits(), reference=verify == "off")
    monkeypatch.setattr(type(backend), "traits", lambda self: traits)
    faults: deque[Any] = deque()
    policy = ExecutionPolicy(verify, 3.0, strict=False)
    executors = tuple(
        RegionExecutor(
            bound.region,
            RegionCode(backend, backend.compile(bound.region)),
            policy,
            faults,
        )
        for bound in regions
    )
    stitched = stitch(module, graph, regions, executors)
    bound = {graph.inputs[place].name: inputs[place] for place in constants}
    found = dict(obstacles or {})
    monkeypatch.setattr(recorded, "obstacle_of", lambda bound, *_: found.get(bound.planned.id, ""))
    events = []
    running = RecordedGraph(
        RecordingSource(module, graph, regions, executors, stitched, bound), 0, lambda *told: events.append(told), trial
    )
    return running, backend, events, faults


def _chain(value):
    return aten.relu(aten.sigmoid(aten.neg(value)))


def test_it_warms_up_records_and_replays(recordings, monkeypatch):
    graph, _, events, _ = _graph(recordings, monkeypatch, _chain, torch.ones(4))
    for _ in range(5):
        value = torch.randn(4)
        (result,) = graph([value])
        torch.testing.assert_close(result, _chain(value))
    assert [item["calls"] for item in recordings.made] == [4]
    assert [detail for _, detail in events] == [
        "3 of 3 regions in 1 CUDA graphs",
        "recorded; torch holds 0 MiB more on the GPU than before",
    ]


def test_an_obstacle_runs_between_two_recordings(recordings, monkeypatch):
    graph, _, events, _ = _graph(recordings, monkeypatch, _chain, torch.ones(4), obstacles={"r1": "it is on cpu"})
    for _ in range(4):
        value = torch.randn(4)
        torch.testing.assert_close(graph([value])[0], _chain(value))
    assert len(recordings.made) == 2
    assert events[0] == ("", "2 of 3 regions in 2 CUDA graphs; r1 between them: it is on cpu")
    assert [detail.split(";")[0] for _, detail in events[1:]] == ["recorded"]


def test_constants_are_read_where_they_lie(recordings, monkeypatch):
    weight = torch.randn(4, 4)
    graph, *_ = _graph(recordings, monkeypatch, aten.mm, torch.ones(4, 4), weight, constants=(1,))
    for _ in range(2):
        value = torch.randn(4, 4)
        torch.testing.assert_close(graph([value, weight])[0], value @ weight)
    assert recordings.made[0]["constants"] == 1
    assert len(recordings.made[0]["names"]) == 1


def test_results_are_verified_before_anything_is_recorded(recordings, monkeypatch):
    graph, *_ = _graph(recordings, monkeypatch, _chain, torch.ones(4), verify="first_call")
    graph([torch.randn(4)])
    assert recordings.made == []
    graph([torch.randn(4)])
    assert len(recordings.made) == 1


def test_what_a_first_call_makes_is_not_in_the_memory_of_graphs(recordings, monkeypatch):
    graph, backend, *_ = _graph(recordings, monkeypatch, _chain, torch.ones(4, 3), dynamic=True)
    for size in (4, 5, 4, 5, 4, 6):
        value = torch.randn(size, 3)
        torch.testing.assert_close(graph(_arguments(graph, value))[0], _chain(value))
    assert len(recordings.made) == 2
    assert len(backend.kept) == 9
    assert not any(backend.kept.values())


def test_of_a_trial_only_what_cannot_be_recorded_is_told(recordings, monkeypatch):
    graph, _, events, _ = _graph(
        recordings, monkeypatch, _chain, torch.ones(4), stubborn=("aten.sigmoid.default",), trial=True
    )
    for _ in range(6):
        graph([torch.randn(4)])
    ((region, detail),) = events
    assert region == "r1"
    assert detail.startswith("runs without a CUDA graph in a trial, recording failed: RuntimeError: operation not")


def test_memory_of_a_failed_recording_is_gone_when_the_piece_runs_without(recordings, monkeypatch):
    held = []

    def broken(*arguments):
        def run(inputs):
            scratch = torch.ones(4)
            held.append(weakref.ref(scratch))
            raise RuntimeError("no")

        return run

    monkeypatch.setattr(recorded, "cuda_graph_recorded", broken)
    graph, backend, *_ = _graph(recordings, monkeypatch, _chain, torch.ones(4))
    seen = []
    backend.ran = seen
    monkeypatch.setattr(
        RegionExecutor, "__call__", lambda self, inputs: seen.append(bool(held and held[0]())) or inputs
    )
    graph([torch.ones(4)])
    seen.clear()
    graph([torch.ones(4)])
    assert held and seen == [False] * 3


def test_a_region_that_cannot_be_recorded_is_left_out_from_then_on(recordings, monkeypatch):
    graph, _, events, faults = _graph(
        recordings, monkeypatch, _chain, torch.ones(4), stubborn=("aten.sigmoid.default",)
    )
    for _ in range(6):
        value = torch.randn(4)
        torch.testing.assert_close(graph([value])[0], _chain(value))
    assert not faults
    assert [region for region, _ in events] == ["", "r1", "", ""]
    assert "operation not permitted" in events[1][1]
    assert "more" not in events[1][1]
    assert events[2][1].startswith("2 of 3 regions in 2 CUDA graphs; r1 between them: recording failed")


def test_a_failure_that_no_region_raised_leaves_the_piece_out(recordings, monkeypatch):
    def broken(*arguments):
        def run(inputs):
            raise RuntimeError("out of memory in the pool")

        return run

    monkeypatch.setattr(recorded, "cuda_graph_recorded", broken)
    graph, _, events, _ = _graph(recordings, monkeypatch, _chain, torch.ones(4))
    value = torch.randn(4)
    for _ in range(4):
        torch.testing.assert_close(graph([value])[0], _chain(value))
    assert [region for region, _ in events][1:4] == ["r0", "r1", "r2"]


def test_each_set_of_sizes_is_recorded_up_to_a_bound(recordings, monkeypatch):
    graph, _, events, _ = _graph(recordings, monkeypatch, _chain, torch.ones(4, 3), dynamic=True)
    for size in range(2, MOST_SIZES + 5):
        value = torch.randn(size, 3)
        for _ in range(3):
            torch.testing.assert_close(graph(_arguments(graph, value))[0], _chain(value))
    assert len(recordings.made) == MOST_SIZES
    assert any("further sizes" in detail for _, detail in events)


def _arguments(graph, value):
    """Numbers, where the traced graph takes any, then the tensor."""
    placeholders = graph._source.module.graph.find_nodes(op="placeholder")
    sizes = iter(value.shape)
    return [value if isinstance(node.meta["val"], torch.Tensor) else next(sizes) for node in placeholders]


def test_a_backward_outside_of_graphs_is_announced(recordings, monkeypatch):
    everything = {f"r{place}": "no" for place in range(3)}
    graph, *_ = _graph(recordings, monkeypatch, _chain, torch.ones(4), obstacles=everything, phase="backward")
    graph([torch.ones(4)])
    assert recordings.backward == 1


def test_gradients_have_memory_of_their_own(recordings, monkeypatch):
    """They are added up over calls, while a graph writes into the same memory each time."""
    kept = []

    def record(function, *_):
        def run(inputs):
            made = [item.clone() for item in function(inputs)]
            kept[:] = kept or made
            return [memory.copy_(value) for memory, value in zip(kept, made, strict=True)]

        return run

    monkeypatch.setattr(recorded, "cuda_graph_recorded", record)
    graph, *_ = _graph(recordings, monkeypatch, _chain, torch.ones(4), phase="backward")
    values = [torch.randn(4) for _ in range(4)]
    results = [graph([value])[0] for value in values]
    for value, result in zip(values, results, strict=True):
        torch.testing.assert_close(result, _chain(value))


def test_views_of_what_comes_in_are_made_of_the_tensors_of_the_call(recordings, monkeypatch):
    def function(value):
        view = aten.t(value)
        return aten.relu(view), view

    graph, _, events, _ = _graph(recordings, monkeypatch, function, torch.ones(4, 2))
    for _ in range(4):
        value = torch.randn(4, 2)
        result, view = graph([value])
        torch.testing.assert_close(result, torch.relu(value.t()))
        assert view.data_ptr() == value.data_ptr() and torch.equal(view, value.t())
    assert [item["calls"] for item in recordings.made] == [3]
    assert events[0][1] == "2 of 2 regions in 1 CUDA graphs"


def test_views_take_the_sizes_of_the_call(recordings, monkeypatch):
    def function(value):
        return aten.relu(value), aten.reshape(value, [value.shape[1] * value.shape[0]])

    graph, *_ = _graph(recordings, monkeypatch, function, torch.ones(4, 3), dynamic=True)
    for rows in (2, 5, 2):
        value = torch.randn(rows, 3)
        result, flat = graph([value])
        torch.testing.assert_close(result, torch.relu(value))
        assert torch.equal(flat, value.flatten())
