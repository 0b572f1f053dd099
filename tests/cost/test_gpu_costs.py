"""Costs on a GPU: replays cost the GPU's seconds, calls what the busier side takes, and no rate exceeds the device."""

from __future__ import annotations

import pytest
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import BackendRates, DeviceModel, HostRates, OpRate, TensorMeta
from mixbackend.contracts.gpu_rates import KERNEL_S
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.cost.gpu_costs import GpuCosts, as_replayed, sound
from mixbackend.cost.priors import prior_rates
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place
from mixbackend.partitioner.async_cost import HEAVY, LIGHT
from mixbackend.partitioner.heterogeneous_cost import HeterogeneousCosts
from mixbackend.partitioner.placement import Placements
from mixbackend.partitioner.roofline import RooflineCostModel

PEAKS = (("float32", 5e13), ("float16", 8e14))
GPU = DeviceModel("cuda:0 synthetic", PEAKS, 4e12, 3e7, 8e12, 6e-6, 1, "probed", 1e-5, 1e10)
CPU = DeviceModel("cpu synthetic", (("float32", 1e11),), 1e10, 1e6, 5e10, 2e-6, 2)
PROBED = BackendRates(
    "vendor",
    entry_s=1e-6,
    crossing_s=2e-6,
    memory_scale=7.0,
    rates=(
        ("matmul", "float16", OpRate(2e-6, 3e15, "probed")),
        ("convolution", "float32", OpRate(1e-6, 2e14, "probed")),
        ("pointwise", "float32", OpRate(1e-6, 9e15, "probed")),
    ),
    host=HostRates(5e-6, 1e-7, 6e-6, (("matmul", 12e-6),)),
)
COSTS = RooflineCostModel(GPU, {"vendor": PROBED})
aten = torch.ops.aten


def test_replays_cost_the_gpus_seconds_and_a_pause_per_region():
    costs = as_replayed(COSTS)
    rates = costs.rates["vendor"]
    assert (rates.entry_s, rates.crossing_s) == (KERNEL_S, 0.0)
    assert rates.rate("matmul", "float16").overhead_s == 2e-6
    assert rates.rate("pointwise", "float32").overhead_s == 1e-6
    # Nobody stated it: what is usual on a GPU.
    assert rates.rate("softmax", "float16").overhead_s == KERNEL_S


def test_rates_stay_within_what_the_device_was_seen_to_do():
    rates = sound(COSTS).rates["vendor"]
    assert rates.rate("matmul", "float16").flops_per_s <= 1.05 * 8e14
    # Convolutions of float32 may round to TF32, and arithmetic in loops is no product.
    assert rates.rate("convolution", "float32").flops_per_s == 2e14
    assert rates.rate("pointwise", "float32").flops_per_s == 9e15
    assert 0.5 < rates.memory_scale < 2.0


def test_a_reference_on_a_gpu_pays_a_dispatch_for_each_op():
    host = prior_rates(EagerBackend(), GPU).host
    assert host is not None
    assert host.op("pointwise") == GPU.launch_s
    assert host.op("convolution/channels_last") > GPU.launch_s


# --- whole graphs ----------------------------------------------------------------------------------------------------


def _tensor(*shape, device="cuda"):
    with fresh_fake_mode():
        return torch.empty(shape, device=device)


def _chain(value):
    for _ in range(20):
        value = aten.tanh(value)
    return value


def _asked(replayed, function, *inputs):
    """The costs of a function's graph on eager alone, and how often it was placed to find them."""
    costs = _costs()
    graph = trace_graph(function, inputs)[1]
    trials = []

    class Counted(Placements):
        def plan(self, model):
            trials.append(model)
            return super().plan(model)

    backends = [EagerBackend()]
    placements = None if replayed else Counted(graph, backends)
    found = costs.find(graph, placements, None)
    assert costs.find(graph, placements, None) is found is costs.known(graph)
    return found, len(trials), place(graph, backends, found).estimated_s


def _costs():
    return GpuCosts(RooflineCostModel(GPU, {"eager": prior_rates(EagerBackend(), GPU)}), frozenset())


def test_small_graphs_wait_for_the_processor():
    found, trials, seconds = _asked(False, _chain, _tensor(4, 4))
    assert trials == 2
    assert found.entry("eager") == pytest.approx(HEAVY * 2e-6)
    assert 0.8 * 20 * GPU.launch_s < seconds <= 20 * GPU.launch_s + 2e-6


def test_large_graphs_wait_for_the_gpu():
    found, trials, seconds = _asked(False, _chain, _tensor(8192, 8192))
    assert trials == 1
    assert found.entry("eager") == pytest.approx(LIGHT * 2e-6)
    traffic = 20 * 2 * 4 * 8192**2 / GPU.bytes_per_s
    assert 0.9 * traffic < seconds < 2 * traffic


def test_replayed_graphs_are_not_tried():
    _, trials, seconds = _asked(True, _chain, _tensor(4, 4))
    assert trials == 0
    assert seconds < 20 * GPU.launch_s / 2


# --- two devices -----------------------------------------------------------------------------------------------------


def _on_both():
    eager = prior_rates(EagerBackend(), CPU)
    return RooflineCostModel(CPU, {"eager": eager})


def test_ops_are_priced_on_the_device_of_their_tensors():
    def function(here, there):
        return aten.tanh(here), aten.tanh(there)

    large = 1024
    mode = fresh_fake_mode()
    with mode:
        here, there = torch.empty(large, large), torch.empty(large, large, device="cuda")
    graph = trace_graph(function, [here, there])[1]
    found = _costs().find(graph, None, _on_both())
    assert isinstance(found, HeterogeneousCosts)
    slow, quick = (found.op("eager", graph.view(node.name)).seconds for node in graph.placed_nodes)
    assert slow > 100 * quick
    metas = [item.meta for item in graph.inputs]
    assert found.read("eager", metas[0]) > 10 * found.read("eager", metas[1])


def test_borders_between_devices_have_a_price():
    def function(value, scalar):
        copied = aten._to_copy(value, device=torch.device("cpu"))
        return copied, aten.mul(value, scalar)

    with fresh_fake_mode():
        value, scalar = torch.empty(1024, 1024, device="cuda"), torch.empty(())
        graph = trace_graph(function, [value, scalar])[1]
    found = _costs().find(graph, None, _on_both())
    copy, product = (found.op("eager", graph.view(node.name)) for node in graph.placed_nodes)
    source, result = graph.view(graph.placed_nodes[0].name).input_tensors[0], graph.placed_nodes[0].outputs[0]
    whole = copy.seconds + found.read("eager", source) + found.write("eager", result)
    assert whole == pytest.approx(GPU.transfer(4 * 1024**2)) and whole > 4e-4
    # A number that happens to be a tensor is passed by value.
    assert product.seconds < 1e-5


def test_backends_of_the_processor_are_entered_there():
    costs = HeterogeneousCosts(COSTS, _on_both(), GPU, 0.5, frozenset({"eager"}))
    assert costs.entry("eager") == 0.5 * 2e-6
    assert costs.entry("vendor") == 1e-6
    here = TensorMeta((4,), (1,), torch.float32, torch.device("cpu"))
    assert costs.crossing("eager", "eager", here) == pytest.approx(1e-7)
