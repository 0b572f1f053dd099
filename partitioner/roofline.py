"""The roofline cost model: seconds from work, a device and rates.

Place: what the planner asks. Input: a ``DeviceModel``, ``BackendRates`` by backend name. Output: ``CostModel`` answers.
An op costs its overhead plus its arithmetic; a channels-last convolution also the copy of a row-major weight. Moving
its tensors is charged where they are materialised, by ``read`` and ``write``, so that fused values cost nothing; of
weights by ``weight``. Where arithmetic hides traffic (``DeviceModel.hides_traffic``), an op costs what its arithmetic
takes longer than moving its tensors: with what these cost it is the longer of both. A higher-order op costs what the
ops of its bodies cost (``contracts.bodies``). Products of few rows are slow because of their weights.
Invariants: pure; a backend without a rate for a class gets the device's peak times an efficiency of the class.
"""

from __future__ import annotations

from collections.abc import Mapping

from mixbackend.contracts import BackendRates, DeviceModel, Estimate, OpRate, OpView, TensorMeta, hint_of
from mixbackend.contracts.bodies import is_free
from mixbackend.contracts.gpu_rates import gpu_rate
from mixbackend.contracts.rate_rows import CONSTANT, UNALIGNED, rate_row, relaid_weight, wider_rows
from mixbackend.partitioner.work import dtype_of, flops_of, stored_bytes

EFFICIENCY: dict[str, float] = {
    "matmul": 0.8,
    "convolution": 0.5,
    "convolution/grouped": 0.08,
    "attention": 0.4,
    "normalization": 0.1,
    "softmax": 0.12,
    "reduction": 0.05,
    "pointwise": 0.15,
    "gather": 0.02,
    "scatter": 0.005,
    "pooling": 0.05,
    "copy": 0.02,
    "sort": 0.005,
    "random": 0.02,
    "other": 0.02,
}
"""By row (``contracts.rate_rows``): share of a processor's peak that decent kernels reach, where nothing was measured;
those of GPUs are in ``contracts.gpu_rates``."""

_FREE = OpRate(0.0, float("inf"))


def default_rate(device: DeviceModel, row: str, dtype: str) -> OpRate:
    """The rate to assume where a backend states none."""
    if device.place.type != "cpu":
        return gpu_rate(device, row, dtype)
    shares = (EFFICIENCY[wider] for wider in (*wider_rows(row), "other") if wider in EFFICIENCY)
    return OpRate(device.launch_s, next(shares) * device.peak(dtype))


class RooflineCostModel:
    """See the module's docstring; implements ``contracts.CostModel``.

    Args:
        device: the machine.
        rates: of every backend that will be asked about.
        whole: by backend, higher-order operators that it takes with their subgraphs (``Traits.takes_whole``).
    """

    def __init__(
        self,
        device: DeviceModel,
        rates: Mapping[str, BackendRates],
        whole: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self.device = device
        self.rates = dict(rates)
        self.whole = dict(whole or {})

    def op(self, backend: str, view: OpView) -> Estimate:
        """Overhead and arithmetic of an op inside a region."""
        if view.op_class == "view":
            return Estimate(0.0, "prior")
        if view.node.bodies:
            return Estimate(self._inside(backend, view), "prior")
        row = rate_row(view)
        rate = self.rate(backend, row, dtype_of(view))
        arithmetic = _arithmetic(view, rate)
        if self.device.hides_traffic(view.op_class):
            arithmetic = max(arithmetic - self.traffic(backend, view), 0.0)
        copies = self._relaying(backend, row, view) + self._padding(backend, row, view)
        return Estimate(rate.overhead_s + arithmetic + copies, rate.provenance)

    def _inside(self, backend: str, view: OpView) -> float:
        """What the bodies of a higher-order op take: as they are placed by themselves, or else op by op, each with
        its traffic: nothing is fused in there, unless a backend takes the op whole."""
        seconds, branches = 0.0, [0.0]
        for body in view.node.bodies:
            moving = [item for item in body.views if not is_free(item)]
            once = body.placed_s
            if once is None:
                price = self._kept_inside if view.op in self.whole.get(backend, ()) else self._by_itself
                once = sum(price(backend, item) for item in moving)
            if body.one_of_several:
                branches.append(once * body.runs)
            else:
                seconds += once * body.runs
        return seconds + max(branches)

    def _by_itself(self, backend: str, view: OpView) -> float:
        """An op with tensors that lie in memory."""
        return self.op(backend, view).seconds + self.traffic(backend, view)

    def _kept_inside(self, backend: str, view: OpView) -> float:
        """An op inside a kernel for attention, which keeps its tensors out of memory; the rate of its products holds
        for the softmax between them as well."""
        if view.op_class in ("softmax", "reduction"):
            return 0.0
        row = "attention" if view.op_class == "matmul" else rate_row(view)
        return _arithmetic(view, self.rate(backend, row, dtype_of(view)))

    def traffic(self, backend: str, view: OpView) -> float:
        """Seconds of reading and writing all tensors of an op, each once."""
        inputs = {item.name: item for item in view.inputs}
        seconds = 0.0
        for item in inputs.values():
            if isinstance(item.meta, TensorMeta):
                waits = item.role is not None and item.role.is_weight
                seconds += self.weight(backend, item.meta) if waits else self.read(backend, item.meta)
        return seconds + sum(self.write(backend, meta) for meta in view.output_tensors)

    def _relaying(self, backend: str, row: str, view: OpView) -> float:
        """Copying a weight into the layout of its image; the probes' weights are too small to show it."""
        weight = relaid_weight(view)
        if weight is None or (CONSTANT in row and self.rates[backend].states(row)):
            return 0.0
        rate = self.rate(backend, "copy", dtype_of(view))
        return self.read(backend, weight) + self.write(backend, weight) + weight.elements() / rate.flops_per_s

    def _padding(self, backend: str, row: str, view: OpView) -> float:
        """Giving the matrices of an unaligned product rows with gaps, and taking them out of the result again.

        A backend does so if it states how long products take, but not how long unaligned ones take. In training the
        loops around a product read and write such rows; in inference its result is what the graph returns, as a rule,
        in eager's strides.
        """
        if view.phase != "inference" or UNALIGNED not in row.split("/"):
            return 0.0
        stated = next((wider for wider in wider_rows(row) if self.rates[backend].states(wider)), row)
        if UNALIGNED in stated.split("/"):
            return 0.0
        padded = [meta for meta in (*view.input_tensors, *view.output_tensors) if _has_gaps_when_padded(meta)]
        return sum(self.read(backend, meta) + self.write(backend, meta) for meta in padded)

    def rate(self, backend: str, row: str, dtype: str) -> OpRate:
        """The rate that answers are made from: the backend's, or the device's default."""
        if row == "view":
            return _FREE
        stated = self.rates[backend].rate(row, dtype)
        return default_rate(self.device, row, dtype) if stated is None else stated

    def read(self, backend: str, meta: TensorMeta) -> float:
        """Traffic of reading a tensor."""
        return self._traffic(backend, stored_bytes(meta))

    def weight(self, backend: str, meta: TensorMeta) -> float:
        """Traffic of reading a weight, which comes at full bandwidth: that of other tensors is written as well."""
        amount = stored_bytes(meta)
        return self.device.weight_traffic(amount, self.rates[backend].weight_scale)

    def write(self, backend: str, meta: TensorMeta) -> float:
        """Traffic of making a tensor."""
        return self._traffic(backend, meta.bytes())

    def crossing(self, producer: str, consumer: str, meta: TensorMeta) -> float:
        """Giving a tensor out of one region and taking it into another; no bytes move on one device."""
        return self.rates[producer].crossing_s + self.rates[consumer].crossing_s

    def entry(self, backend: str) -> float:
        """Calling one region."""
        return self.rates[backend].entry_s

    def switch(self, backend: str) -> float:
        """Waking the backend's pool of threads for one region, and then torch's again."""
        return self.rates[backend].switch_s

    def _traffic(self, backend: str, amount: float) -> float:
        return self.device.traffic(amount, self.rates[backend].memory_scale)


def _arithmetic(view: OpView, rate: OpRate) -> float:
    return max(flops_of(view) / rate.flops_per_s, rate.least_s)


def _has_gaps_when_padded(meta: TensorMeta) -> bool:
    return meta.rank >= 2 and any(hint_of(size) * meta.dtype.itemsize % 16 for size in meta.shape)
