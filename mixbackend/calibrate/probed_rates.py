"""From seconds of a backend's probes to its rates.

Place: below ``backend_rates``. Input: timed probes, and what does not depend on the work (``structural.Fixed``).
Output: ``BackendRates``.
Where arithmetic and traffic add up, what a probe takes beyond entering, overhead and traffic is arithmetic. Where
arithmetic hides traffic (``DeviceModel.hides_traffic``), the rate is the one at which the probe's ops, each the longer
of both, take as long as the probe took. Small probes tell the shortest time of their row (``OpRate.least_s``).
Invariants: equal timings give equal rates; rows without a timing keep the prior's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mixbackend.calibrate.probing import CompiledProbe
from mixbackend.contracts import BackendRates, DeviceModel, InputView, OpRate, OpTag, OpView, TensorMeta
from mixbackend.cost.gpu_costs import MEMORY_SCALES
from mixbackend.cost.unfinished import Fixed
from mixbackend.partitioner.roofline import default_rate
from mixbackend.partitioner.work import flops_of, stored_bytes

_LEAST_ARITHMETIC_SHARE = 0.1
"""At least this share of a probe's time counts as arithmetic, however large its traffic was estimated."""
_LEAST_KERNEL_SHARE = 0.5
"""The same where arithmetic hides traffic: beside what entering and overheads were estimated to take."""
_MOST_HIDDEN = 2.0
"""Times the rate if there were no traffic: what hides more than half of its time tells no rate of arithmetic."""
_HALVINGS = 30
_PROCESSOR_MEMORY_SCALES = (0.25, 10.0)


@dataclass(frozen=True)
class Timed:
    """A probe and its seconds.

    Attributes:
        done: the probe.
        seconds: of one call.
        settled: whether its timings agree.
    """

    done: CompiledProbe
    seconds: float
    settled: bool


class RatesFromProbes:
    """See the module's docstring.

    Args:
        device, prior: where, and what to keep where no probe tells anything.
        fixed: seconds that do not depend on the work.
        stream: one pass over a value, which tells the memory scale.
        entered: whether entering a region was timed.
    """

    def __init__(
        self,
        device: DeviceModel,
        prior: BackendRates,
        fixed: Fixed,
        stream: Timed | None = None,
        entered: bool = False,
    ) -> None:
        self._device = device
        self._prior = prior
        self._fixed = fixed
        self._entered = entered
        self._memory_scale = self._memory(stream)

    def rates(self, timed: Sequence[Timed]) -> BackendRates:
        """The prior's rates with those that probes tell."""
        known = {(name, dtype): rate for name, dtype, rate in self._prior.rates}
        for item in sorted(timed, key=lambda item: item.done.probe.least):
            row, dtype = key = item.done.row, item.done.probe.dtype
            before = known.get(key) or self._prior.rate(row, dtype) or default_rate(self._device, row, dtype)
            known[key] = self._with_least(before, item) if item.done.probe.least else self._rate(item, before)
        rows = tuple((name, dtype, rate) for (name, dtype), rate in known.items())
        return replace(
            self._prior,
            entry_s=self._fixed.entry_s,
            crossing_s=self._fixed.crossing_s,
            memory_scale=self._memory_scale,
            rates=rows,
            provenance="probed" if self._entered else self._prior.provenance,
        )

    def _memory(self, stream: Timed | None) -> float:
        if stream is None:
            return self._prior.memory_scale
        traffic = self._traffic(stream.done, 1.0)
        seconds = stream.seconds - self._fixed.entry_s - self._fixed.loop_s - 2 * self._fixed.crossing_s
        low, high = _PROCESSOR_MEMORY_SCALES if self._device.place.type == "cpu" else MEMORY_SCALES
        return min(max(seconds / traffic, low), high)

    def _with_least(self, before: OpRate, item: Timed) -> OpRate:
        overhead = self._fixed.overhead(item.done.row)
        ops = len(_moving(item.done))
        return replace(before, least_s=max(self._beyond_fixed(item, ops * overhead), 0.0) / max(ops, 1))

    def _beyond_fixed(self, item: Timed, overheads: float) -> float:
        return item.seconds - self._fixed.entry_s - item.done.tensors * self._fixed.crossing_s - overheads

    def _rate(self, item: Timed, before: OpRate) -> OpRate:
        overhead = self._fixed.overhead(item.done.row)
        if self._device.hides_traffic(item.done.probe.op_class):
            return OpRate(overhead, self._hiding(item, overhead), "probed", before.least_s)
        fixed = self._fixed.entry_s + item.done.tensors * self._fixed.crossing_s + overhead
        traffic = self._traffic(item.done, self._memory_scale)
        arithmetic = max(item.seconds - fixed - traffic, _LEAST_ARITHMETIC_SHARE * item.seconds)
        return OpRate(overhead, max(item.done.probe.flops, 1.0) / arithmetic, "probed")

    def _hiding(self, item: Timed, overhead: float) -> float:
        """FLOP/s at which the probe's ops, each the longer of arithmetic and traffic, take as long as they took."""
        views = _moving(item.done)
        ops = [(flops_of(view), self._traffic_of(view, self._memory_scale)) for view in views]
        flops = max(item.done.probe.flops, 1.0)
        left = max(self._beyond_fixed(item, len(ops) * overhead), _LEAST_KERNEL_SHARE * item.seconds)

        def seconds(rate: float) -> float:
            return sum(max(flops / rate, traffic) for flops, traffic in ops)

        slow = flops / left
        fast = _MOST_HIDDEN * slow
        if seconds(fast) >= left:
            return slow
        for _ in range(_HALVINGS):
            middle = (slow + fast) / 2
            slow, fast = (middle, fast) if seconds(middle) > left else (slow, middle)
        return slow

    def _traffic(self, done: CompiledProbe, scale: float) -> float:
        """Seconds of the bytes that the probe's ops read and write; constants at the device's bandwidth."""
        return sum(self._traffic_of(view, scale) for view in _moving(done))

    def _traffic_of(self, view: OpView, scale: float) -> float:
        seconds = sum(self._read(item, scale) for item in view.inputs if isinstance(item.meta, TensorMeta))
        written = (meta.bytes() for meta in view.node.outputs[:1] if isinstance(meta, TensorMeta))
        return seconds + sum(self._device.traffic(amount, scale) for amount in written)

    def _read(self, item: InputView, scale: float) -> float:
        """Weights wait in memory while the other probes run, as the cost model has it."""
        assert isinstance(item.meta, TensorMeta)
        amount = stored_bytes(item.meta)
        if item.role is not None and item.role.is_weight:
            return self._device.weight_traffic(amount, 1.0)
        return self._device.traffic(amount, scale)


def _moving(done: CompiledProbe) -> list[OpView]:
    """The probe's ops that compute or move something."""
    return [view for view in done.views if OpTag.VIEW not in view.node.tags and view.op != "getitem"]
