"""What graphs cost on a GPU: by who waits, by whether kernels are replayed, and on two devices at once."""

from __future__ import annotations

import pytest
import torch

from mixbackend import Config
from mixbackend.compile.open_environment import open_environment
from mixbackend.contracts import DeviceModel
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.cost import costs as costs_module
from mixbackend.cost.priors import prior_rates
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import placement as placement_module
from mixbackend.partitioner.heterogeneous_cost import HeterogeneousCosts
from mixbackend.partitioner.roofline import RooflineCostModel

GPU = DeviceModel("cuda:0 test", (("float32", 5e13), ("float16", 8e14)), 4e12, 3e7, 8e12, 6e-6, 1, "probed", 1e-5, 1e10)
CPU = DeviceModel("cpu test", (("float32", 1e11),), 1e10, 1e6, 5e10, 2e-6, 2)
OPS = 30
aten = torch.ops.aten


@pytest.fixture
def make_environment(monkeypatch, tmp_path):
    asked = []

    def costs(backends, device_type, database, look, dtypes):
        asked.append(device_type)
        device = GPU if device_type == "cuda" else CPU
        return RooflineCostModel(device, {item.name: prior_rates(item, device) for item in backends})

    monkeypatch.setattr(costs_module, "cost_model", costs)
    monkeypatch.setattr(costs_module, "is_measured", lambda *_: True)
    monkeypatch.setattr(costs_module, "measured_here", lambda backends, *_: frozenset(item.name for item in backends))

    def make(records=False):
        settings = {"backends": ["eager", "onednn"], "cache": {"dir": str(tmp_path)}}
        return open_environment(Config().with_options(settings), records), asked

    return make


def _chain(value):
    for _ in range(OPS):
        value = aten.tanh(value)
    return value


def _graph(function, *tensors):
    with fresh_fake_mode():
        values = [torch.empty(shape, device=device) for shape, device in tensors]
    return trace_graph(function, values)[1]


def test_calls_of_small_graphs_cost_what_queueing_costs(make_environment):
    environment, asked = make_environment()
    graph = _graph(_chain, ((8, 8), "cuda"))
    plan = environment.planner.place(graph)
    assert plan.estimated_s == pytest.approx(OPS * GPU.launch_s, rel=0.15)
    # Read once, and the same costs hold for whoever asks later.
    assert environment.planner.reprice(graph, [plan]).seconds == (pytest.approx(plan.estimated_s),)
    assert asked == ["cuda"]


def test_replays_cost_what_the_gpu_does(make_environment):
    environment, _ = make_environment(records=True)
    plan = environment.planner.place(_graph(_chain, ((8, 8), "cuda")))
    assert plan.estimated_s < 0.4 * OPS * GPU.launch_s


def test_what_is_on_the_processor_costs_what_it_costs_there(make_environment):
    environment, asked = make_environment(records=True)

    def function(here, there):
        return aten.mm(here, here), _chain(there)

    graph = _graph(function, ((512, 512), "cpu"), ((512, 512), "cuda"))
    assert isinstance(environment.planner.costs.of(graph), HeterogeneousCosts)
    plan = environment.planner.place(graph)
    product = 2.0 * 512**3 / CPU.peak("float32")
    assert product < plan.estimated_s < 3 * product
    assert asked == ["cuda", "cpu"]


def test_a_copy_between_the_devices_counts(make_environment):
    environment, _ = make_environment(records=True)
    large = (4096, 1024)
    alone = environment.planner.place(_graph(_chain, (large, "cuda")))
    copied = environment.planner.place(
        _graph(lambda value: aten._to_copy(_chain(value), device="cpu"), (large, "cuda"))
    )
    added = copied.estimated_s - alone.estimated_s
    assert added == pytest.approx(GPU.transfer(4 * 4096 * 1024), rel=0.3)


def test_a_graph_is_searched_once_for_each_share_that_is_tried(make_environment, monkeypatch):
    environment, _ = make_environment()
    graph = _graph(_chain, ((8, 8), "cuda"))
    searched, original = [], placement_module.solve
    monkeypatch.setattr(placement_module, "solve", lambda *given: searched.append(1) or original(*given))
    plan = environment.planner.place(graph)
    trials = len(searched)
    assert trials == 2, "the share where the processor is waited for is the second"
    # Only the placement that follows the trials has them; what is placed later is searched for at the costs found.
    assert environment.planner.place(graph) == plan
    assert len(searched) == trials + 1
    environment.planner.place(graph, frozenset({(graph.placed_nodes[0].name, "onednn")}))
    assert len(searched) == trials + 2
