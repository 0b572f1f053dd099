"""Costs in seconds: the vocabulary that backends, calibration and planner share.

Place: rates come from probes (``mixbackend.calibrate``), are read by the cost model and end in the energy.
Units: seconds, bytes, FLOP (one multiply-add is two).
Invariants: frozen values; every number says where it came from (``Provenance``).
Non-goals: measuring anything; see ``mixbackend.calibrate``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import torch

from mixbackend.contracts.ops import OpView
from mixbackend.contracts.rate_rows import wider_rows
from mixbackend.contracts.tensors import TensorMeta

Provenance = Literal["backend", "probed", "prior"]
"""Where a cost came from, best first: the backend's own word; a rate probed here; a guess."""

_OVERLAPPING = frozenset({"matmul", "convolution", "attention"})
"""Classes of ops that compute far more than they move: their kernels fetch one tile while they multiply another."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A machine as the roofline sees it.

    Attributes:
        device: torch's name of the device (``cpu``, ``cuda:0``), a space, and the product's name.
        flops_per_s: peak FLOP/s by dtype name (``float32``); missing dtypes count as float32.
        bytes_per_s: bandwidth of main memory for large copies.
        cache_bytes: size below which values stay in cache.
        cache_bytes_per_s: bandwidth inside that cache.
        launch_s: dispatching one eager op.
        threads: intra-op threads that the figures hold for.
        provenance: ``probed`` or ``prior``.
        transfer_s: handing a small tensor over to the processor, or taking one from it; 0 where it is the processor.
        transfer_bytes_per_s: of large tensors on that way.
    """

    device: str
    flops_per_s: tuple[tuple[str, float], ...]
    bytes_per_s: float
    cache_bytes: float
    cache_bytes_per_s: float
    launch_s: float
    threads: int
    provenance: Provenance = "prior"
    transfer_s: float = 0.0
    transfer_bytes_per_s: float = float("inf")

    @property
    def place(self) -> torch.device:
        """Torch's device."""
        return torch.device(self.device.partition(" ")[0])

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s of a dtype name."""
        rates = dict(self.flops_per_s)
        return rates.get(dtype, rates["float32"])

    def hides_traffic(self, op_class: str) -> bool:
        """Whether an op of this class takes the longer of its arithmetic and its traffic, and not their sum."""
        return op_class in _OVERLAPPING

    def transfer(self, amount: float) -> float:
        """Seconds of copying this many bytes between the device and the processor."""
        return self.transfer_s + amount / self.transfer_bytes_per_s

    def bandwidth(self, amount: float) -> float:
        """Bytes per second for a value of this many bytes."""
        return self.cache_bytes_per_s if amount <= self.cache_bytes else self.bytes_per_s

    def traffic(self, amount: float, scale: float) -> float:
        """Seconds of moving a value of this many bytes for a backend that takes ``scale`` times the device's.

        On a processor that is what it takes in cache: main memory is no slower for backends that are slow in cache.
        """
        if self.place.type != "cpu" or amount <= self.cache_bytes:
            return scale * amount / self.bandwidth(amount)
        return max(scale * amount / self.cache_bytes_per_s, amount / self.bytes_per_s)

    def weight_traffic(self, amount: float, scale: float) -> float:
        """The same of a weight, which waits from one call to the next: everything else that a model has passes through
        a processor's cache meanwhile, so that main memory decides."""
        return scale * amount / (self.bytes_per_s if self.place.type == "cpu" else self.bandwidth(amount))


@dataclass(frozen=True, slots=True)
class OpRate:
    """How fast a backend does one class of ops.

    Attributes:
        overhead_s: fixed seconds of one op inside a region (dispatch, thread fork); no region entry.
        flops_per_s: sustained FLOP/s of the arithmetic alone; where that hides traffic, of what takes longer.
        provenance: where the numbers came from.
        least_s: no op takes less beyond its overhead, however little it computes: on an accelerator the sums of a
            product are made one after another, and with few of them most of its units wait.
    """

    overhead_s: float
    flops_per_s: float
    provenance: Provenance = "prior"
    least_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostRates:
    """What a backend costs the processor while a device works beside it: queueing, never waiting.

    Attributes:
        entry_s: calling one region, without its ops.
        crossing_s: extra seconds per tensor that crosses the region's boundary.
        op_s: queueing one op of a row that is not among ``rows``.
        rows: seconds of one op by row, see ``contracts.rate_rows``; what is missing falls back to wider rows.
    """

    entry_s: float
    crossing_s: float
    op_s: float
    rows: tuple[tuple[str, float], ...] = ()

    def op(self, row: str) -> float:
        """Seconds of queueing one op of a row."""
        stated = dict(self.rows)
        return next((stated[wider] for wider in wider_rows(row) if wider in stated), self.op_s)


@dataclass(frozen=True)
class BackendRates:
    """All rates of one backend on one device.

    On a device that works beside the processor all seconds are the device's own, as if work were queued ahead of it;
    what queueing costs is in ``host``.

    Attributes:
        backend: its name.
        entry_s: calling one region, without its work (argument passing, session entry, allocation of one output).
        crossing_s: extra seconds per tensor that crosses the region's boundary.
        memory_scale: its seconds per byte over the device model's (1.0 is at full bandwidth); on a processor those of
            values in cache, since main memory is the same for all.
        rates: by (row, dtype name), see ``contracts.rate_rows``; what is missing falls back to wider rows, then to
            ``float32``, then to the device's peak.
        provenance: of entry and crossing.
        switch_s: once more per region in plans that mix pools of threads: torch's pool falls asleep and this backend's
            wakes, and the other way round; 0 for backends on torch's pool.
        weight_scale: like ``memory_scale``, of weights, which are only read.
        host: what it costs the processor beside the device; ``None`` where the processor itself computes.
        error: relative, of seconds that these rates tell, as their source states it; 0 where none is stated, and where
            they were probed on this machine.
    """

    backend: str
    entry_s: float
    crossing_s: float
    memory_scale: float = 1.0
    rates: tuple[tuple[str, str, OpRate], ...] = field(default=())
    provenance: Provenance = "prior"
    switch_s: float = 0.0
    weight_scale: float = 1.0
    host: HostRates | None = None
    error: float = 0.0

    @cached_property
    def _rate_by_key(self) -> dict[tuple[str, str], OpRate]:
        return {(row, dtype): rate for row, dtype, rate in reversed(self.rates)}

    def rate(self, row: str, dtype: str) -> OpRate | None:
        """The rate for a row and dtype name, ``None`` if the backend states none for the row's op class."""
        keys = [(wider, name) for name in (dtype, "float32") for wider in wider_rows(row)]
        return next((self._rate_by_key[key] for key in keys if key in self._rate_by_key), None)

    def states(self, row: str) -> bool:
        """Whether it has a rate for this very row, for some dtype."""
        return any(row == stated for stated, _ in self._rate_by_key)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds and where they came from."""

    seconds: float
    provenance: Provenance


class CostModel(Protocol):
    """What the planner asks of costs. Implementations must be pure: equal questions, equal answers."""

    def op(self, backend: str, view: OpView) -> Estimate:
        """Seconds of the arithmetic and dispatch of an op inside a region; no memory traffic, no region entry.

        Of arithmetic that hides traffic (``DeviceModel.hides_traffic``), what it takes beyond its traffic.
        """
        ...

    def read(self, backend: str, meta: TensorMeta) -> float:
        """Seconds for an op of this backend to read a materialised tensor."""
        ...

    def weight(self, backend: str, meta: TensorMeta) -> float:
        """Seconds for an op of this backend to read a weight."""
        return self.read(backend, meta)

    def write(self, backend: str, meta: TensorMeta) -> float:
        """Seconds for an op of this backend to materialise a tensor (allocate and write)."""
        ...

    def crossing(self, producer: str, consumer: str, meta: TensorMeta) -> float:
        """Extra seconds to hand a tensor from one backend's region to another's: exchange, copy, layout, device."""
        ...

    def entry(self, backend: str) -> float:
        """Seconds to call one region, once, in a plan with regions that share one pool of threads."""
        ...

    def switch(self, backend: str) -> float:
        """Seconds more for each region in a plan that mixes pools of threads; 0 on torch's pool."""
        return 0.0
