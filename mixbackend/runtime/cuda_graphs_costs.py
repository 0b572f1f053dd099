"""Costs under CUDA graphs: what launching costs when kernels are replayed.

Place: around the cost model of a session that records. Input: rates as they were probed, call by call. Output: the same
without what only the processor does: entering regions, handing tensors over, dispatching ops.
"""

from __future__ import annotations

from dataclasses import replace

from mixbackend.contracts import BackendRates, CostModel
from mixbackend.partitioner.roofline import RooflineCostModel

REPLAYED_S = 1.5e-6
"""From the end of one replayed kernel to the beginning of the next, about."""


def as_replayed(costs: CostModel) -> CostModel:
    """A cost model whose ops cost no more overhead than a replayed kernel, and whose regions cost none.

    Measurements of whole regions are left out: they hold for calls.
    """
    assert isinstance(costs, RooflineCostModel)
    device = replace(costs.device, launch_s=min(costs.device.launch_s, REPLAYED_S))
    return RooflineCostModel(device, {name: _replayed(rates) for name, rates in costs.rates.items()})


def _replayed(rates: BackendRates) -> BackendRates:
    rows = tuple(
        (row, dtype, replace(rate, overhead_s=min(rate.overhead_s, REPLAYED_S))) for row, dtype, rate in rates.rates
    )
    return replace(rates, entry_s=0.0, crossing_s=0.0, rates=rows)
