"""Costs on a GPU: of replays, and of calls, where the processor's work counts as well.

Place: between calibration and the planner's placements. Input: rates as they were probed, the GPU's seconds and the
processor's apart. Output: the cost model of a graph. Replayed kernels cost the processor nothing: only the GPU's
seconds count, with a pause for each region, since nothing is fused across its border. Where kernels are launched one
by one, ``partitioner.async_cost`` finds out for each graph who waits for whom. Graphs with tensors on the processor as
well are priced by ``partitioner.heterogeneous_cost``.
Invariants: no rate exceeds what the device was seen to do; bytes cost what they cost the device, about: probes of small
tensors cannot tell more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from mixbackend.calibrate.probed_rates import MEMORY_SCALES_BESIDE
from mixbackend.contracts import BackendRates, CostModel, DeviceModel, OpGraph
from mixbackend.contracts.gpu_rates import KERNEL_S
from mixbackend.partitioner.async_cost import Place, Reprice, balance, weighed
from mixbackend.partitioner.heterogeneous_cost import HeterogeneousCosts, is_heterogeneous
from mixbackend.partitioner.roofline import RooflineCostModel

_MOST_OF_PEAK = 1.05


class GpuCosts:
    """Cost models by graph.

    Args:
        costs: as probed.
        replayed: whether kernels are replayed as CUDA graphs.
        processor: makes the costs on the processor; asked if a graph has tensors there.
        on_processor: names of backends that work there alone.
    """

    def __init__(
        self,
        costs: RooflineCostModel,
        replayed: bool,
        processor: Callable[[], CostModel],
        on_processor: frozenset[str],
    ) -> None:
        self._costs = sound(costs)
        self._replayed = replayed
        self._processor = processor
        self._on_processor = on_processor
        self._lock = threading.RLock()
        self._known: dict[int, tuple[weakref.ref[OpGraph], CostModel]] = {}

    def of(self, graph: OpGraph, place: Place, reprice: Reprice) -> CostModel:
        """Costs of a graph; the same whenever it is asked about.

        Args:
            graph: whose.
            place: plans it at a cost model, which is tried a few times where kernels are launched one by one.
            reprice: seconds of a plan at a cost model.
        """
        with self._lock:
            known = self._known.get(id(graph))
            if known is not None and known[0]() is graph:
                return known[1]
            found = self._made(graph, place, reprice)
            self._known[id(graph)] = weakref.ref(graph), found
            return found

    def _made(self, graph: OpGraph, place: Place, reprice: Reprice) -> CostModel:
        mixed = is_heterogeneous(graph)
        if self._replayed:
            return self._with_processor(as_replayed(self._costs), 1.0, mixed)

        @cache  # Plans are remembered by costs.
        def costs_at(share: float) -> CostModel:
            return self._with_processor(weighed(self._costs, share), share, mixed)

        return costs_at(balance(place, reprice, costs_at))

    def _with_processor(self, costs: CostModel, share: float, mixed: bool) -> CostModel:
        if not mixed:
            return costs
        return HeterogeneousCosts(costs, self._processor(), self._costs.device, share, self._on_processor)


def as_replayed(costs: RooflineCostModel) -> RooflineCostModel:
    """Costs of replays."""
    found = weighed(costs, 0.0)
    rates = {
        name: replace(item, entry_s=max(item.entry_s, KERNEL_S), crossing_s=0.0) for name, item in found.rates.items()
    }
    return RooflineCostModel(found.device, rates)


def sound(costs: RooflineCostModel) -> RooflineCostModel:
    """Costs without rates that the device cannot reach."""
    return RooflineCostModel(costs.device, {name: _sound(item, costs.device) for name, item in costs.rates.items()})


def _sound(rates: BackendRates, device: DeviceModel) -> BackendRates:
    low, high = MEMORY_SCALES_BESIDE
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
