"""Rates of one backend on one device, from its probes.

Place: second step of calibration; kept in the database per backend, fingerprint and device.
Method: structural probes tell what does not depend on the work: an almost empty region (entry); chains of tiny loops,
products and convolutions (overhead of one op); many tensors (crossing); one pass over a value (memory scale). What a
class probe takes beyond those is its rate's (``probed_rates``).
On an accelerator the probes are replayed, which tells its own seconds; the structural ones are called as well, one by
one, which tells what queueing costs the processor. Its two types of 16 bits are probed as one.
What there was no time for is said (``Calibration.left``), and can be gone on with (``Unfinished``).
Invariants: classes that could not be probed, or with timings that disagree, keep the backend's prior; equal timings
give equal rates.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from mixbackend.calibrate.accelerator_rates import host_rates, with_other_half, with_shared
from mixbackend.calibrate.device import synchronizer
from mixbackend.calibrate.probed_rates import RatesFromProbes, Timed
from mixbackend.calibrate.probing import CompiledProbe, compile_probes
from mixbackend.calibrate.structural import assumed_seconds, fixed_seconds, structural_probes
from mixbackend.calibrate.timing import Clock, time_calls
from mixbackend.contracts import (
    Backend,
    BackendRates,
    DeviceModel,
    Probe,
)
from mixbackend.contracts.rate_rows import CHANNELS_LAST
from mixbackend.cost.unfinished import Fixed, Unfinished
from mixbackend.host.undisturbed import undisturbed
from mixbackend.partitioner.roofline import default_rate

COMPILE_BUDGET_S = 12.0
"""Seconds that a backend may spend on compiling its probes; the rest of them keep their prior."""

_PROBE_SLICE_S = 0.04
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
        fixed: what the structural probes told.
        left: labels of the stated probes that there was no time for.
        build_s: seconds of building one of its probes, by the median; 0 where none ran.
    """

    rates: BackendRates
    notes: tuple[str, ...]
    compile_s: float
    run_s: float
    settled: bool
    fixed: Fixed
    left: tuple[str, ...] = ()
    build_s: float = 0.0

    @property
    def unfinished(self) -> Unfinished | None:
        """What to go on with, ``None`` if nothing is left."""
        return Unfinished(self.rates, self.fixed, self.left) if self.left else None


def measure_rates(
    backend: Backend,
    device: DeviceModel,
    prior: BackendRates,
    compile_budget_s: float = COMPILE_BUDGET_S,
    clock: Clock = time.perf_counter,
    busy: bool = False,
    earlier: Unfinished | None = None,
    reference: BackendRates | None = None,
) -> Calibration:
    """Probe a backend. Never raises over what the backend does.

    Args:
        backend, device, prior: what is probed, where, and what to keep where a probe tells nothing.
        compile_budget_s: see ``COMPILE_BUDGET_S``.
        clock: monotonic seconds.
        busy: other programs fill the machine: rates far below the prior are taken for disturbances.
        earlier: where to go on; only what was left is probed.
        reference: rates of the reference on an accelerator; rows that share its kernels are taken from there.
    """
    shared = backend.traits().shared_rows if reference is not None else frozenset()
    binds = backend.traits().weights != "live"
    structural = structural_probes(device.place, binds) if earlier is None else {}
    stated, stated_notes = _stated(backend, device, binds)
    stated = {label: probe for label, probe in stated.items() if probe.op_class not in shared}
    if earlier is not None:
        stated = {label: probe for label, probe in stated.items() if label in earlier.left}
    begin = clock()
    compiled = compile_probes(backend, [*structural.values(), *stated.values()], compile_budget_s, clock)
    middle = clock()
    timed, failed = _time(compiled.probes, device.place, clock)
    trusted = {key: item for key, item in timed.items() if item.settled}
    known = {name: trusted[id(probe)] for name, probe in structural.items() if id(probe) in trusted}
    stated_timed = [trusted[id(probe)] for probe in stated.values() if id(probe) in trusted]
    if earlier is None:
        fixed = fixed_seconds(_seconds(known), assumed_seconds(prior, device))
        rates = RatesFromProbes(device, prior, fixed, known.get("stream"), "entry" in known).rates(
            _informative(backend, stated_timed)
        )
    else:
        fixed = earlier.fixed
        rates = RatesFromProbes(device, earlier.rates, fixed).rates(_informative(backend, stated_timed))
    if device.place.type != "cpu":
        rates = _beside_processor(backend, device, rates, known, clock)
    if reference is not None:
        rates = with_shared(rates, reference, shared)
    end = clock()
    disturbed = _disturbed(timed.values())
    if busy:
        rates = _without_stalls(rates, prior, device)
    settled = not busy and len(disturbed) <= len(timed) * _UNSETTLED_SHARE
    notes = (*stated_notes, *compiled.notes, *failed, *disturbed)
    left = tuple(label for label, probe in stated.items() if probe in compiled.left)
    build_s = statistics.median([item.compile_s for item in compiled.probes] or [0.0])
    return Calibration(rates, notes, middle - begin, end - middle, settled, fixed, left, build_s)


def _informative(backend: Backend, timed: Sequence[Timed]) -> list[Timed]:
    """Of a backend that knows one layout alone, a probe in another times the copy on its border, a price of its own."""
    return [item for item in timed if not backend.traits().row_major or CHANNELS_LAST not in item.done.row]


def _beside_processor(
    backend: Backend, device: DeviceModel, rates: BackendRates, known: Mapping[str, Timed], clock: Clock
) -> BackendRates:
    """The rates with what only accelerators have; what the processor spends was told before if nothing is known now."""
    if known:
        called, _ = _time([item.done for item in known.values()], device.place, clock, replayed=False)
        settled = {name: called.get(id(item.done.probe)) for name, item in known.items()}
        seconds = _seconds({name: item for name, item in settled.items() if item is not None and item.settled})
        rates = replace(rates, host=host_rates(rates.host, seconds, backend.traits().fused))
    return with_other_half(rates, device)


def _seconds(known: Mapping[str, Timed]) -> dict[str, float]:
    return {name: item.seconds for name, item in known.items()}


def _disturbed(timed: Iterable[Timed]) -> tuple[str, ...]:
    rows = ((item.done.row, item.done.probe.dtype) for item in timed if not item.settled)
    return tuple(f"{row} {dtype}: timings disagree, the machine is busy" for row, dtype in rows)


def _stated(backend: Backend, device: DeviceModel, binds: bool) -> tuple[dict[str, Probe], tuple[str, ...]]:
    """The backend's own probes by label, and why there are none."""
    try:
        probes = tuple(backend.probes(device))
    except Exception as error:
        # A vendor's method; the structural probes still tell something.
        return {}, (f"probes() failed, {type(error).__name__}: {error}",)
    labelled = {f"{number} {probe.op_class} {probe.dtype}": probe for number, probe in enumerate(probes)}
    return {label: probe for label, probe in labelled.items() if binds or not probe.constants}, ()


def _without_stalls(rates: BackendRates, prior: BackendRates, device: DeviceModel) -> BackendRates:
    """Parallel loops stall for whole time slices on a full machine, and all samples may agree on that."""
    rows = []
    for row, dtype, rate in rates.rates:
        assumed = prior.rate(row, dtype) or default_rate(device, row, dtype)
        stalled = rate.flops_per_s < _STALLED_SHARE * assumed.flops_per_s
        rows.append((row, dtype, assumed if stalled else rate))
    low, high = _BUSY_MEMORY_SCALES
    return replace(rates, rates=tuple(rows), memory_scale=min(max(rates.memory_scale, low), high))


def _time(
    compiled: Sequence[CompiledProbe], place: torch.device, clock: Clock, replayed: bool = True
) -> tuple[dict[int, Timed], list[str]]:
    """Seconds by probe; on an accelerator its own if replayed, else those of calling."""
    with undisturbed():
        try:
            calls = [item.call for item in compiled]
            timings = time_calls(calls, _PROBE_SLICE_S, synchronizer(place.type), clock, replayed)
        except Exception as error:
            # A backend that fails at its second call tells nothing that could be trusted.
            return {}, [f"timing failed, {type(error).__name__}: {error}"]
    pairs = zip(compiled, timings, strict=True)
    return {id(item.probe): Timed(item, timing.seconds, timing.settled) for item, timing in pairs}, []
