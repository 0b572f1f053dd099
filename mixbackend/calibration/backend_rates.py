"""Rates of one backend on one device, from its probes.

Place: second step of calibration; kept in the database per backend, fingerprint and device.
Method: structural probes tell what does not depend on the work: an almost empty region (entry); chains of tiny loops,
products and convolutions (overhead of one op); many tensors (crossing); one pass over a value (memory scale). What a
class probe takes beyond those and beyond its traffic is arithmetic, and gives the rate of its class.
Invariants: classes that could not be probed, or whose timings disagree, keep the backend's prior; equal timings give
equal rates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixbackend.calibration.device import synchronizer
from mixbackend.calibration.probing import CompiledProbe, compile_probes, undisturbed
from mixbackend.calibration.timing import Clock, time_calls
from mixbackend.contracts import (
    Backend,
    BackendRates,
    DeviceModel,
    InputRole,
    OpClass,
    OpRate,
    OpTag,
    Probe,
    TensorMeta,
)
from mixbackend.contracts.rate_rows import CHANNELS_LAST
from mixbackend.partitioner.roofline import default_rate
from mixbackend.partitioner.work import stored_bytes

COMPILE_BUDGET_S = 12.0
"""Seconds that a backend may spend on compiling its probes; the rest of them keep their prior."""

_PROBE_SLICE_S = 0.04
_CHAIN = 12
_WIDE = 8
_STREAM_SHAPE = (512, 768)
"""As large as the values of the class probes, so that their traffic is known well."""
_LEAST_ARITHMETIC_SHARE = 0.1
"""At least this share of a probe's time counts as arithmetic, however large its traffic was estimated."""
_MEMORY_SCALES = (0.25, 10.0)
_UNSETTLED_SHARE = 0.25
_STALLED_SHARE = 0.2
_BUSY_MEMORY_SCALES = (0.5, 3.0)


@dataclass(frozen=True)
class Calibration:
    """What was learned of one backend.

    Attributes:
        rates: probed where probes ran, prior elsewhere.
        notes: one line for each probe that did not run.
        compile_s, run_s: seconds spent.
        settled: whether most timings agree; if not, the machine was busy and it should be done again later.
    """

    rates: BackendRates
    notes: tuple[str, ...]
    compile_s: float
    run_s: float
    settled: bool


def measure_rates(
    backend: Backend,
    device: DeviceModel,
    prior: BackendRates,
    compile_budget_s: float = COMPILE_BUDGET_S,
    clock: Clock = time.perf_counter,
    busy: bool = False,
) -> Calibration:
    """Probe a backend. Never raises over what the backend does.

    Args:
        backend, device, prior: who is probed, where, and what to keep where a probe tells nothing.
        compile_budget_s: see ``COMPILE_BUDGET_S``.
        clock: monotonic seconds.
        busy: other programs fill the machine: rates far below the prior are taken for disturbances.
    """
    place = device.place
    binds = backend.traits().weights != "live"
    structural = _structural_probes(place, binds)
    try:
        stated = backend.probes(device)
    except Exception as error:
        # A vendor's method; the structural probes still tell something.
        stated = ()
        stated_notes = [f"probes() failed, {type(error).__name__}: {error}"]
    else:
        stated_notes = []
    if not binds:
        stated = tuple(probe for probe in stated if not probe.constants)
    begin = clock()
    compiled, notes = compile_probes(backend, [*structural.values(), *stated], compile_budget_s, clock)
    middle = clock()
    timed, failed = _time(compiled, place, clock)
    end = clock()
    trusted = {key: item for key, item in timed.items() if item.settled}
    known = {name: trusted[id(probe)] for name, probe in structural.items() if id(probe) in trusted}
    telling = [trusted[id(probe)] for probe in stated if id(probe) in trusted]
    if backend.traits().row_major:
        # Such a probe times the copy on the border, which is a price of its own.
        telling = [item for item in telling if CHANNELS_LAST not in item.done.row]
    rates = _Fit(device, prior, known).rates(telling)
    disturbed = tuple(
        f"{item.done.row} {item.done.probe.dtype}: timings disagree, the machine is busy"
        for item in timed.values()
        if not item.settled
    )
    if busy:
        rates = _without_stalls(rates, prior, device)
    settled = not busy and len(disturbed) <= len(timed) * _UNSETTLED_SHARE
    return Calibration(rates, (*stated_notes, *notes, *failed, *disturbed), middle - begin, end - middle, settled)


def _without_stalls(rates: BackendRates, prior: BackendRates, device: DeviceModel) -> BackendRates:
    """Parallel loops stall for whole time slices on a full machine, and all samples may agree on that."""
    rows = []
    for row, dtype, rate in rates.rates:
        assumed = prior.rate(row, dtype) or default_rate(device, row, dtype)
        stalled = rate.flops_per_s < _STALLED_SHARE * assumed.flops_per_s
        rows.append((row, dtype, assumed if stalled else rate))
    low, high = _BUSY_MEMORY_SCALES
    return replace(rates, rates=tuple(rows), memory_scale=min(max(rates.memory_scale, low), high))


@dataclass(frozen=True)
class _Timed:
    done: CompiledProbe
    seconds: float
    settled: bool


def _time(compiled: Sequence[CompiledProbe], place: torch.device, clock: Clock) -> tuple[dict[int, _Timed], list[str]]:
    with undisturbed():
        try:
            calls = [item.call for item in compiled]
            timings = time_calls(calls, _PROBE_SLICE_S, synchronizer(place.type), clock)
        except Exception as error:
            # A backend that fails at its second call tells nothing that could be trusted.
            return {}, [f"timing failed, {type(error).__name__}: {error}"]
    pairs = zip(compiled, timings, strict=True)
    return {id(item.probe): _Timed(item, timing.seconds, timing.settled) for item, timing in pairs}, []


class _Fit:
    """From seconds to rates."""

    def __init__(self, device: DeviceModel, prior: BackendRates, known: Mapping[str, _Timed]) -> None:
        self._device = device
        self._prior = prior
        self._known = {name: item.seconds for name, item in known.items()}
        self._stream = known.get("stream")
        self._loop_overhead = self._overhead("entry", "loops", device.launch_s)
        self._library_overhead = self._overhead("product", "products", max(self._loop_overhead, device.launch_s / 2))
        self._convolution_overhead = self._overhead("convolution", "convolutions", self._library_overhead)
        self._crossing = self._crossing_seconds()
        self._entry = self._entry_seconds()
        self._overheads = {
            "matmul": self._library_overhead,
            "attention": self._library_overhead,
            "convolution": self._convolution_overhead,
        }
        self._memory_scale = self._memory()

    def rates(self, timed: Sequence[_Timed]) -> BackendRates:
        probed = {(item.done.row, item.done.probe.dtype): self._rate(item) for item in timed}
        kept = {(name, dtype): rate for name, dtype, rate in self._prior.rates}
        rows = tuple((name, dtype, rate) for (name, dtype), rate in {**kept, **probed}.items())
        return replace(
            self._prior,
            entry_s=self._entry,
            crossing_s=self._crossing,
            memory_scale=self._memory_scale,
            rates=rows,
            provenance="probed" if "entry" in self._known else self._prior.provenance,
        )

    def _overhead(self, one: str, many: str, default: float) -> float:
        if one not in self._known or many not in self._known:
            return default
        return max((self._known[many] - self._known[one]) / (_CHAIN - 1), 0.0)

    def _crossing_seconds(self) -> float:
        if "entry" not in self._known or "wide" not in self._known:
            return self._prior.crossing_s
        more = self._known["wide"] - self._known["entry"] - (_WIDE - 1) * self._loop_overhead
        return max(more / (2 * (_WIDE - 1)), 0.0)

    def _entry_seconds(self) -> float:
        if "entry" not in self._known:
            return self._prior.entry_s
        return max(self._known["entry"] - self._loop_overhead - 2 * self._crossing, 0.0)

    def _memory(self) -> float:
        if self._stream is None:
            return self._prior.memory_scale
        traffic = self._traffic(self._stream.done, 1.0)
        seconds = self._stream.seconds - self._entry - self._loop_overhead - 2 * self._crossing
        low, high = _MEMORY_SCALES
        return min(max(seconds / traffic, low), high)

    def _rate(self, item: _Timed) -> OpRate:
        op_class = item.done.probe.op_class
        overhead = self._overheads.get(op_class, self._loop_overhead)
        fixed = self._entry + item.done.tensors * self._crossing + overhead
        traffic = self._traffic(item.done, self._memory_scale)
        arithmetic = max(item.seconds - fixed - traffic, _LEAST_ARITHMETIC_SHARE * item.seconds)
        return OpRate(overhead, max(item.done.probe.flops, 1.0) / arithmetic, "probed")

    def _traffic(self, done: CompiledProbe, scale: float) -> float:
        """Seconds of the bytes that the probe's ops read and write; constants at the device's bandwidth."""
        seconds = 0.0
        for view in done.views:
            if OpTag.VIEW in view.node.tags or view.op == "getitem":
                continue
            amounts = [
                (1.0 if item.role is InputRole.CONSTANT else scale, stored_bytes(item.meta))
                for item in view.inputs
                if isinstance(item.meta, TensorMeta)
            ]
            amounts += [(scale, meta.bytes()) for meta in view.node.outputs[:1] if isinstance(meta, TensorMeta)]
            seconds += sum(factor * amount / self._device.bandwidth(amount) for factor, amount in amounts)
        return seconds


# --- structural probes -----------------------------------------------------------------------------------------------


def _structural_probes(place: torch.device, binds: bool) -> dict[str, Probe]:
    """By name; backends that bind code to constants bind the weight of a convolution, as in a model."""
    aten = torch.ops.aten

    def inputs(count: int, *shape: int) -> Callable[[], Sequence[Any]]:
        return lambda: [torch.full(shape, 0.5, dtype=torch.float32, device=place) for _ in range(count)]

    def loops(value: Any) -> Any:
        for step in range(_CHAIN):
            value = aten.tanh(value) if step % 2 else aten.sigmoid(value)
        return value

    def products(value: Any) -> Any:
        for _ in range(_CHAIN):
            value = aten.mm(value, value)
        return value

    def convolutions(image: Any, weight: Any) -> Any:
        for _ in range(_CHAIN):
            image = convolve(image, weight)
        return image

    def convolve(image: Any, weight: Any) -> Any:
        return aten.convolution(image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    weights = (1,) if binds else ()

    def image_and_weight() -> Sequence[Any]:
        return [*inputs(1, 1, 8, 1, 1)(), *inputs(1, 8, 8, 1, 1)()]

    def probe(
        op_class: OpClass,
        function: Callable[..., Any],
        build: Callable[[], Sequence[Any]],
        constants: tuple[int, ...] = (),
    ) -> Probe:
        return Probe(op_class, "float32", function, build, 0.0, constants=constants)

    return {
        "entry": probe("pointwise", lambda value: aten.sigmoid(value), inputs(1, 8, 8)),
        "loops": probe("pointwise", loops, inputs(1, 8, 8)),
        "product": probe("matmul", lambda value: aten.mm(value, value), inputs(1, 8, 8)),
        "products": probe("matmul", products, inputs(1, 8, 8)),
        "convolution": probe("convolution", convolve, image_and_weight, weights),
        "convolutions": probe("convolution", convolutions, image_and_weight, weights),
        "wide": probe("pointwise", lambda *values: tuple(aten.sigmoid(v) for v in values), inputs(_WIDE, 8, 8)),
        "stream": probe("pointwise", lambda value: aten.relu(value), inputs(1, *_STREAM_SHAPE)),
    }
