"""Costs on a device that works beside the processor: which of them waits for the other decides what counts.

Place: around the roofline cost model, for devices with separate rates of what the processor spends (``HostRates``).
The processor queues kernels while the device runs those before them. A plan takes about the larger of two sums: the
seconds of queueing, H, and the seconds of running, D. What the planner minimises is one sum, so it is given
``s * H + (1 - s) * D``: never more than the larger of both, whatever the share s. For the right share the plan that
minimises it has the smallest larger side, or nearly so: the duality of Lagrange multipliers. Where kernels are replayed
the processor costs nothing, and s is 0.
Output: ``weighed``, the cost model of a share; ``balance``, the share of a graph.
Invariants: pure; rates are transformed, the roofline stays as it is; at most three placements per graph.
Non-goals: waiting in the middle of a graph, where a size depends on values; what both sides do after one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mixbackend.contracts import BackendRates, CostModel, DeviceModel, HostRates, OpRate, Plan
from mixbackend.contracts.gpu_rates import ROWS, gpu_rate
from mixbackend.partitioner.roofline import RooflineCostModel

LIGHT, EVEN, HEAVY = 0.1, 0.5, 0.9
"""Shares of the processor. Never 0 nor 1: what costs the busier side nothing should still cost the other little."""

Place = Callable[[CostModel], Plan]
Reprice = Callable[[Plan, CostModel], float]

_NO_HOST = HostRates(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Sides:
    """What a plan costs each side.

    Attributes:
        host_s: of queueing.
        device_s: of running.
    """

    host_s: float
    device_s: float

    @property
    def larger(self) -> float:
        """About what a call takes."""
        return max(self.host_s, self.device_s)


def weighed(costs: RooflineCostModel, share: float) -> RooflineCostModel:
    """A cost model with sums of ``share`` times the processor's seconds plus the rest times the device's.

    Measurements of whole regions are left out: they were waited for, which is neither side.
    """
    device, mine = costs.device, 1.0 - share
    scaled = replace(device, bytes_per_s=device.bytes_per_s / mine, cache_bytes_per_s=device.cache_bytes_per_s / mine)
    weighed = {name: _weighed(rates, share, device) for name, rates in costs.rates.items()}
    return RooflineCostModel(scaled, weighed, whole=costs.whole)


def _weighed(rates: BackendRates, share: float, device: DeviceModel) -> BackendRates:
    host, mine = rates.host or _NO_HOST, 1.0 - share
    unstated = [row for row in ROWS if rates.rate(row, "float32") is None]
    usual = tuple((row, dtype, gpu_rate(device, row, dtype)) for row in unstated for dtype, _ in device.flops_per_s)

    def both(device_s: float, host_s: float) -> float:
        return mine * device_s + share * host_s

    rows = tuple(
        (
            row,
            dtype,
            OpRate(both(rate.overhead_s, host.op(row)), rate.flops_per_s / mine, rate.provenance, mine * rate.least_s),
        )
        for row, dtype, rate in (*rates.rates, *usual)
    )
    return replace(
        rates,
        entry_s=both(rates.entry_s, host.entry_s),
        crossing_s=both(rates.crossing_s, host.crossing_s),
        rates=rows,
        host=None,
    )


def balance(place: Place, reprice: Reprice, costs_at: Callable[[float], CostModel]) -> float:
    """The share of the processor that gives a graph its best plan.

    Args:
        place: plans the graph at a cost model.
        reprice: seconds of a plan at a cost model.
        costs_at: the cost model of a share.
    """
    found: dict[float, Sides] = {}
    for share in (LIGHT, HEAVY, EVEN):
        sides = found[share] = _sides(place, reprice, costs_at, share)
        # The plan that costs the busier side least cannot be undercut: no other makes that side any cheaper.
        if (share == LIGHT and sides.device_s >= sides.host_s) or (share == HEAVY and sides.host_s >= sides.device_s):
            return share
    return min(found, key=lambda share: found[share].larger)


def _sides(place: Place, reprice: Reprice, costs_at: Callable[[float], CostModel], share: float) -> Sides:
    """Both sides of the plan at a share: its price there and at another share tell them apart."""
    other = LIGHT if share == HEAVY else HEAVY
    plan = place(costs_at(share))
    here, there = plan.estimated_s, reprice(plan, costs_at(other))
    slope = (there - here) / (other - share)
    return Sides(here + (1.0 - share) * slope, here - share * slope)
