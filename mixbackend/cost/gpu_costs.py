"""Costs on a GPU: of replays, and of calls, where the processor's work counts as well.

Place: between the tables of rates and the planner's placements. Input: rates as they were probed, with separate
seconds of the GPU and of the processor. Output: the cost model of a graph.
Method: replayed kernels cost the processor nothing: only the GPU's seconds count, with a pause for each region, since
nothing is fused across its border. Where kernels are launched one by one, ``partitioner.async_cost`` finds for each
graph which side waits for the other. Graphs with tensors on the processor as well are priced by
``partitioner.heterogeneous_cost``.
Invariants: no rate exceeds what the device was seen to do; bytes cost what they cost the device, about: probes of small
tensors cannot tell more.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import cache

from mixbackend.backends.common import forks
from mixbackend.contracts import BackendRates, CostModel, DeviceModel, OpGraph
from mixbackend.contracts.gpu_rates import KERNEL_S
from mixbackend.partitioner.async_cost import balance, weighed
from mixbackend.partitioner.heterogeneous_cost import HeterogeneousCosts
from mixbackend.partitioner.placement import Placements
from mixbackend.partitioner.roofline import RooflineCostModel

MEMORY_SCALES = (0.8, 1.25)
"""Of accelerators: bytes cost about what they cost the device, whichever backend moves them."""
_MOST_OF_PEAK = 1.05


class GpuCosts:
    """Cost models by graph.

    Args:
        costs: as probed.
        on_processor: names of backends that work there alone.
    """

    def __init__(self, costs: RooflineCostModel, on_processor: frozenset[str]) -> None:
        self._costs = sound(costs)
        self._on_processor = on_processor
        self._lock = forks.long_reentrant_lock()
        self._known: dict[int, tuple[weakref.ref[OpGraph], CostModel]] = {}

    def known(self, graph: OpGraph) -> CostModel | None:
        """Costs of a graph that were found before."""
        with self._lock:
            known = self._known.get(id(graph))
        return known[1] if known is not None and known[0]() is graph else None

    def find(self, graph: OpGraph, placements: Placements | None, processor: CostModel | None) -> CostModel:
        """Costs of a graph; the same whenever it is asked about.

        Args:
            graph: that is priced.
            placements: plans it at a few costs where kernels are launched one by one; ``None`` where they are
                replayed.
            processor: costs on the processor, where the graph has tensors there.
        """
        with self._lock:
            known = self.known(graph)
            if known is not None:
                return known
            found = self._made(placements, processor)
            self._known[id(graph)] = weakref.ref(graph), found
            return found

    def _made(self, placements: Placements | None, processor: CostModel | None) -> CostModel:
        if placements is None:
            return self._with_processor(as_replayed(self._costs), 1.0, processor)

        @cache  # Plans are remembered by costs.
        def costs_at(share: float) -> CostModel:
            return self._with_processor(weighed(self._costs, share), share, processor)

        return costs_at(balance(placements.plan, placements.seconds, costs_at))

    def _with_processor(self, costs: CostModel, share: float, processor: CostModel | None) -> CostModel:
        if processor is None:
            return costs
        return HeterogeneousCosts(costs, processor, self._costs.device, share, self._on_processor)


def as_replayed(costs: RooflineCostModel) -> RooflineCostModel:
    """Costs of replays."""
    found = weighed(costs, 0.0)
    rates = {
        name: replace(item, entry_s=max(item.entry_s, KERNEL_S), crossing_s=0.0) for name, item in found.rates.items()
    }
    return RooflineCostModel(found.device, rates, whole=found.whole)


def sound(costs: RooflineCostModel) -> RooflineCostModel:
    """Costs without rates that the device cannot reach."""
    rates = {name: _sound(item, costs.device) for name, item in costs.rates.items()}
    return RooflineCostModel(costs.device, rates, whole=costs.whole)


def _sound(rates: BackendRates, device: DeviceModel) -> BackendRates:
    low, high = MEMORY_SCALES
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
