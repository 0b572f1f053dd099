"""Rates where arithmetic hides traffic: found again from the seconds that they lead to, and shared by who calls them.

On fake tensors: seconds are made up, so that no GPU is needed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mixbackend.calibrate.accelerator_rates import is_shared, with_shared
from mixbackend.calibrate.block_runs import BlockRun
from mixbackend.calibrate.fitting import ACCELERATOR_FACTORS, fit
from mixbackend.calibrate.probed_rates import RatesFromProbes, Timed
from mixbackend.calibrate.probing import CompiledProbe
from mixbackend.calibrate.structural import Fixed
from mixbackend.contracts import Backend, BackendRates, DeviceModel, HostRates, OpGraph, OpRate, Plan, Probe, Traits
from mixbackend.contracts.rate_rows import rate_row
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.cost.gpu_costs import MEMORY_SCALES
from mixbackend.cost.records import device_record, rates_record, read_device, read_rates
from mixbackend.graph.trace import trace_graph
from mixbackend.partitioner import place
from mixbackend.partitioner.reprice import reprice
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.partitioner.work import flops_of

from .conftest import KnownBackend

aten = torch.ops.aten
GPU = DeviceModel("cuda:0 test", (("float32", 5e13), ("float16", 8e14)), 4e12, 3e7, 4e12, 6e-6, 1, "probed", 1e-5, 1e10)
FIXED = Fixed(1e-6, 1e-7, 1e-6, 2e-6, 2e-6)
HOST = HostRates(1e-6, 0.0, 5e-6)
PRIOR = BackendRates("b", 0.0, 0.0, rates=(("matmul", "float16", OpRate(1.5e-6, 1e14, least_s=2e-6)),), host=HOST)


def graph_of(*shapes: tuple[int, ...]) -> OpGraph:
    """Products of pairs of matrices."""

    def products(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(aten.mm(one, two) for one, two in zip(values[::2], values[1::2], strict=True))

    with fresh_fake_mode():
        values = [torch.empty(shape, dtype=torch.float16, device="cuda") for shape in shapes]
    return trace_graph(products, values)[1]


def timed(graph: OpGraph, flops_per_s: float, least: bool = False, more_s: float = 0.0) -> Timed:
    """A probe as long as the longer of arithmetic and traffic of each of its products."""
    views = tuple(graph.view(node.name) for node in graph.placed_nodes)
    flops = sum(flops_of(view) for view in views)
    moved = RooflineCostModel(GPU, {"b": PRIOR})
    spent = sum(max(flops_of(view) / flops_per_s, moved.traffic("b", view)) + FIXED.product_s for view in views)
    tensors = 3 * len(views)
    probe = Probe("matmul", "float16", aten.mm, list, flops, least=least)
    done = CompiledProbe(probe, rate_row(views[0]), lambda: None, views, tensors, 0.0)
    return Timed(done, FIXED.entry_s + tensors * FIXED.crossing_s + spent + more_s, True)


LARGE = ((4096, 4096), (4096, 4096))
FLAT = ((100_000, 16), (16, 1000))


def found(*items: Timed) -> OpRate:
    rate = RatesFromProbes(GPU, PRIOR, FIXED).rates(items).rate("matmul", "float16")
    assert rate is not None
    return rate


@pytest.mark.parametrize("shapes", [LARGE, (*LARGE, *FLAT), (*LARGE, *LARGE)])
def test_rates_are_found_again(shapes: tuple[tuple[int, ...], ...]) -> None:
    rate = found(timed(graph_of(*shapes), 4e14))
    assert rate.flops_per_s == pytest.approx(4e14, rel=1e-3)
    assert (rate.overhead_s, rate.provenance, rate.least_s) == (FIXED.product_s, "probed", 2e-6)


def test_what_only_moves_claims_no_more_than_was_seen() -> None:
    graph = graph_of(*FLAT)
    moved = RooflineCostModel(GPU, {"b": PRIOR}).traffic("b", graph.view(graph.placed_nodes[0].name))
    assert found(timed(graph, 4e14)).flops_per_s == pytest.approx(2.0 * 100_000 * 16 * 1000 / moved)


def test_a_time_below_what_was_estimated_to_be_fixed_is_no_endless_rate() -> None:
    item = timed(graph_of(*LARGE), 4e14)
    short = replace(item, seconds=1e-6)
    assert found(short).flops_per_s == pytest.approx(2 * 4096**3 / 0.5e-6)


def test_small_probes_tell_the_shortest_time_and_leave_the_rate() -> None:
    small = timed(graph_of((128, 768), (768, 3072)), 4e14, least=True, more_s=3e-6)
    view = small.done.views[0]
    spent = max(flops_of(view) / 4e14, RooflineCostModel(GPU, {"b": PRIOR}).traffic("b", view))
    for items in ((small,), (small, timed(graph_of(*LARGE), 4e14))):
        assert found(*items).least_s == pytest.approx(spent + 3e-6)
    assert found(small).flops_per_s == 1e14
    assert found(replace(small, seconds=0.0)).least_s == 0.0


def test_records_keep_the_shortest_time_and_older_ones_are_measured_again() -> None:
    record = rates_record(PRIOR)
    assert read_rates(record) == PRIOR
    assert read_rates({**record, "version": record["version"] - 1}) is None
    assert read_rates({**record, "rates": [["matmul", "float16", 1e-6, 1e14, "probed", -1.0]]}) is None
    assert read_rates(rates_record(replace(PRIOR, host=None))) is not None
    assert read_device(device_record(GPU)) == GPU
    assert read_device({**device_record(GPU), "version": 1}) is None


# --- kernels of the reference ----------------------------------------------------------------------------------------

REFERENCE = BackendRates(
    "reference",
    0.0,
    0.0,
    rates=(
        ("matmul", "float16", OpRate(2e-6, 4e14, "probed")),
        ("matmul/deep", "float16", OpRate(2e-6, 3e14, "probed")),
        ("pointwise", "float16", OpRate(2e-6, 1e13, "probed")),
    ),
    host=HOST,
)


def test_callers_of_the_same_kernels_have_their_rates() -> None:
    own = replace(PRIOR, rates=(*PRIOR.rates, ("pointwise", "float16", OpRate(1e-6, 2e13))))
    rates = with_shared(own, REFERENCE, {"matmul"})
    assert rates.rate("matmul", "float16") == REFERENCE.rate("matmul", "float16")
    assert rates.rate("matmul/deep/constant", "float16") == REFERENCE.rate("matmul/deep", "float16")
    assert rates.rate("pointwise", "float16") == OpRate(1e-6, 2e13)
    assert rates.host == own.host
    assert is_shared("convolution/channels_last/point", {"convolution/channels_last"})
    assert not is_shared("convolution", {"convolution/channels_last"})


class Caller(KnownBackend):
    def traits(self) -> Traits:
        return Traits(device_types=frozenset({"cuda"}), shared_rows=frozenset({"matmul"}))


class Reference(KnownBackend):
    name = "reference"

    def traits(self) -> Traits:
        return Traits(device_types=frozenset({"cuda"}), reference=True)


def runs_of(backends: list[Backend], rates: dict[str, BackendRates], share: float) -> list[BlockRun]:
    """Products on the first backend that take this share of their estimates."""
    costs = RooflineCostModel(GPU, rates)
    runs = []
    for side in (512, 1024, 2048, 4096):
        graph = graph_of((side, side), (side, side), (side, side), (side, side))
        plan: Plan = place(graph, backends[:1], costs)
        seconds = reprice(graph, [plan], backends, costs).seconds[0]
        runs.append(BlockRun(str(side), graph, plan, share * float(seconds or 0.0)))
    return runs


def test_fitting_leaves_shared_kernels_alone_and_memory_within_its_limits() -> None:
    shared, alone = Caller(), Reference()
    rates = {"known": with_shared(replace(REFERENCE, backend="known"), REFERENCE, {"matmul"}), "reference": REFERENCE}
    for share in (0.3, 3.0):
        for backends in ([shared, alone], [alone]):
            done = fit(runs_of(backends, rates, share), backends, GPU, rates)
            assert done is not None and set(done.factors) == {factor.name for factor in ACCELERATOR_FACTORS}
            low, high = MEMORY_SCALES
            assert low - 1e-9 <= done.rates.memory_scale <= high + 1e-9
            moved = done.factors["half products"]
            assert moved == 1.0 if backends[0] is shared else (moved - 1.0) * (share - 1.0) > 0.0
            if backends[0] is shared:
                assert done.rates.rate("matmul", "float16") == REFERENCE.rate("matmul", "float16")
            else:
                assert done.error_after < done.error_before
