"""Costs on a GPU: calls cost the processor's work, replays do not, and no rate exceeds the device."""

from __future__ import annotations

from mixbackend.backends.eager import EagerBackend
from mixbackend.calibration.priors import prior_rates
from mixbackend.contracts import BackendRates, DeviceModel, OpRate
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.runtime.gpu_costs import REPLAYED_S, as_called, as_replayed

GPU = DeviceModel("cuda:0 synthetic", (("float32", 5e13), ("float16", 8e14)), 4e12, 3e7, 8e12, 6e-6, 1, "probed")
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
)
PRIOR = BackendRates("vendor", 5e-6, 1e-7, rates=(("matmul", "float16", OpRate(12e-6, 1e14)),))


def test_calls_cost_what_the_processor_does_for_them():
    rates = as_called(RooflineCostModel(GPU, {"vendor": PROBED}), {"vendor": PRIOR}).rates["vendor"]
    assert rates.rate("matmul", "float16").overhead_s == 12e-6
    assert rates.rate("pointwise", "float32").overhead_s == 1e-6
    assert (rates.entry_s, rates.crossing_s) == (5e-6, 2e-6)


def test_replays_cost_neither_entries_nor_crossings():
    costs = as_replayed(RooflineCostModel(GPU, {"vendor": PROBED}))
    rates = costs.rates["vendor"]
    assert (rates.entry_s, rates.crossing_s) == (0.0, 0.0)
    assert rates.rate("matmul", "float16").overhead_s == REPLAYED_S
    assert rates.rate("pointwise", "float32").overhead_s == 1e-6
    assert costs.device.launch_s == REPLAYED_S


def test_rates_stay_within_what_the_device_was_seen_to_do():
    for costs in (
        as_called(RooflineCostModel(GPU, {"vendor": PROBED}), {"vendor": PRIOR}),
        as_replayed(RooflineCostModel(GPU, {"vendor": PROBED})),
    ):
        rates = costs.rates["vendor"]
        assert rates.rate("matmul", "float16").flops_per_s <= 1.05 * 8e14
        # Convolutions of float32 may round to TF32, and arithmetic in loops is no product.
        assert rates.rate("convolution", "float32").flops_per_s == 2e14
        assert rates.rate("pointwise", "float32").flops_per_s == 9e15
        assert 0.5 < rates.memory_scale < 2.0


def test_measured_regions_count_for_calls_alone():
    from mixbackend.contracts import Estimate

    known = {("vendor", "key"): Estimate(1e-3, "measured")}
    model = RooflineCostModel(GPU, {"vendor": PROBED}, known)
    assert as_called(model, {"vendor": PRIOR}).region("vendor", "key") == known["vendor", "key"]
    assert as_replayed(model).region("vendor", "key") is None


def test_a_reference_on_a_gpu_pays_a_dispatch_for_each_op():
    model = RooflineCostModel(GPU, {"eager": PROBED})
    rates = as_called(model, {"eager": prior_rates(EagerBackend(), GPU)}).rates["eager"]
    assert rates.rate("pointwise", "float32").overhead_s == GPU.launch_s
