"""Costs on a GPU, with and without CUDA graphs.

Place: around the cost model of a session. Input: rates as they were probed, which is what the GPU itself does: probes
are replayed. Output: a cost model for calls, where the processor's work for each kernel counts as well; or one for
replays, where entering regions and handing tensors over costs nothing.
Invariants: no rate exceeds what the device was seen to do; bytes cost what they cost the device, about: probes of small
tensors cannot tell more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mixbackend.contracts import BackendRates, CostModel, DeviceModel, OpRate
from mixbackend.partitioner.roofline import RooflineCostModel

REPLAYED_S = 1.5e-6
"""From the end of one replayed kernel to the beginning of the next, about."""

_MEMORY_SCALES = (0.8, 1.25)
_MOST_OF_PEAK = 1.05


def as_called(costs: CostModel, priors: Mapping[str, BackendRates]) -> CostModel:
    """Costs of calls.

    Args:
        costs: as probed.
        priors: by backend: what its calls cost the processor.
    """
    assert isinstance(costs, RooflineCostModel)
    device = costs.device
    rates = {name: _called(_sound(rates, device), priors[name]) for name, rates in costs.rates.items()}
    return RooflineCostModel(device, rates, costs.region)


def as_replayed(costs: CostModel) -> CostModel:
    """Costs of replays. Measurements of whole regions are left out: they hold for calls."""
    assert isinstance(costs, RooflineCostModel)
    device = replace(costs.device, launch_s=min(costs.device.launch_s, REPLAYED_S))
    return RooflineCostModel(device, {name: _replayed(_sound(item, device)) for name, item in costs.rates.items()})


def _sound(rates: BackendRates, device: DeviceModel) -> BackendRates:
    low, high = _MEMORY_SCALES
    rows = tuple(
        (row, dtype, replace(rate, flops_per_s=min(rate.flops_per_s, _bound(row, dtype, device))))
        for row, dtype, rate in rates.rates
    )
    return replace(rates, rates=rows, memory_scale=min(max(rates.memory_scale, low), high))


def _bound(row: str, dtype: str, device: DeviceModel) -> float:
    """The peak, where it was measured for what the row does: products of this type."""
    if row.partition("/")[0] not in ("matmul", "convolution", "attention") or dtype == "float32":
        return float("inf")
    return _MOST_OF_PEAK * device.peak(dtype)


def _called(rates: BackendRates, prior: BackendRates) -> BackendRates:
    def called(row: str, dtype: str, rate: OpRate) -> OpRate:
        assumed = prior.rate(row, dtype)
        return rate if assumed is None else replace(rate, overhead_s=max(rate.overhead_s, assumed.overhead_s))

    rows = tuple((row, dtype, called(row, dtype, rate)) for row, dtype, rate in rates.rates)
    entry, crossing = max(rates.entry_s, prior.entry_s), max(rates.crossing_s, prior.crossing_s)
    return replace(rates, rates=rows, entry_s=entry, crossing_s=crossing)


def _replayed(rates: BackendRates) -> BackendRates:
    rows = tuple(
        (row, dtype, replace(rate, overhead_s=min(rate.overhead_s, REPLAYED_S))) for row, dtype, rate in rates.rates
    )
    return replace(rates, entry_s=0.0, crossing_s=0.0, rates=rows)
