"""The cost model of this machine: measured once, kept on disk.

Place: asked by the runtime before planning; the public face of this package.
Input: backends, a device type, the database. Output: ``contracts.CostModel``.
On an accelerator compilers take seconds for each probe: all backends share a fixed time (``ACCELERATOR_BUDGET_S``),
the slow ones last, what was learned is kept backend by backend, and the next process goes on where this one stopped.
Invariants: measuring happens once per (backend, fingerprint, device, threads, torch), and again half an hour later if
the machine was too busy for the timings to agree; nothing here raises over
what a backend does; without measuring the answers are priors, or what was measured before, and say so.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.calibrate.backend_rates import COMPILE_BUDGET_S, measure_rates
from mixbackend.calibrate.block_runs import run_blocks
from mixbackend.calibrate.blocks import blocks_for
from mixbackend.calibrate.budget import TimeLeft, turn
from mixbackend.calibrate.device import measure_device, prior_device
from mixbackend.calibrate.fitting import Fit, fit
from mixbackend.calibrate.isolated_probe import probe_apart
from mixbackend.calibrate.probing import undisturbed
from mixbackend.calibrate.timing import machine_is_busy
from mixbackend.contracts import Backend, BackendRates, CostModel, DeviceModel, Estimate
from mixbackend.cost.priors import anchored, prior_rates
from mixbackend.cost.records import (
    device_record,
    rates_record,
    read_device,
    read_rates,
    read_unfinished,
    unfinished_record,
)
from mixbackend.host.devices import device_name
from mixbackend.host.memory import keep_freed_memory
from mixbackend.host.threads import sharing
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.storage import Database

SWITCH = "MIXBACKEND_CALIBRATE"
"""Set to ``0``, this environment variable forbids measuring, whatever the caller says."""

ACCELERATOR_BUDGET_S = 45.0
"""Seconds in which a process measures the backends of an accelerator."""

_RETRY_AFTER_S = 1800.0

Report = Callable[[str, str], None]
"""Takes (backend, note); the default writes to the log."""

_logger = logging.getLogger("mixbackend.calibration")
_measuring = threading.Lock()


def log_note(backend: str, note: str) -> None:
    """The default report."""
    _logger.info("%s: %s", backend, note)


def cost_model(
    backends: Sequence[Backend],
    device_type: str,
    database: Database,
    *,
    measure: bool = True,
    report: Report = log_note,
    compile_budget_s: float = COMPILE_BUDGET_S,
    apart: Collection[str] = (),
    budget_s: float = ACCELERATOR_BUDGET_S,
) -> CostModel:
    """The cost model for these backends on a device.

    Args:
        backends: whoever may be asked about.
        device_type: ``cpu`` or ``cuda``.
        database: where measurements are looked up and kept.
        measure: probe what is not known yet (about a second for the device, two for each backend, plus the time that a
            backend takes to compile its probes and blocks); if not, priors stand in.
        report: told of each probe that did not run, with the reason.
        compile_budget_s: seconds of compiling per backend, for its probes and again for its blocks.
        apart: names of backends that are probed in processes of their own.
        budget_s: seconds for all backends of an accelerator; what is not known by then is left for the next process.
    """
    measure = measure and os.environ.get(SWITCH, "1") != "0"
    with _measuring:
        device = _device(device_type, database, measure)
        for backend in backends:
            if measure and backend.name in apart:
                _measure_apart(backend, device, database, report)
        turns = sorted(backends, key=turn)
        time_left = None
        if measure and device.place.type != "cpu":
            time_left = TimeLeft(budget_s, sum(_is_unknown(item, device, database) for item in turns))
        prober = _Prober(device, database, report, compile_budget_s, time_left) if measure else None
        rates: dict[str, BackendRates] = {}
        for backend in turns:
            prior = _prior(backend, device, turns[0], rates)
            rates[backend.name] = _rates(backend, device, database, prober, prior, rates)
            if prober is not None and backend.traits().reference:
                prober.reference = backend
    return RooflineCostModel(device, rates, _measurements(backends, device, database))


def device_model(device_type: str, database: Database, *, measure: bool = True) -> DeviceModel:
    """The device alone."""
    with _measuring:
        return _device(device_type, database, measure and os.environ.get(SWITCH, "1") != "0")


def _subject(*parts: object) -> str:
    return " | ".join(map(str, (*parts, f"torch {torch.__version__}", f"threads {torch.get_num_threads()}")))


def _device(device_type: str, database: Database, measure: bool) -> DeviceModel:
    subject = _subject(device_name(device_type))

    def look_up() -> DeviceModel | None:
        record = database.rates("device", subject)
        return None if measure and _due_again(record) else read_device(record)

    known = look_up()
    if known is not None or not measure:
        return known or prior_device(device_type)
    # Processes that start together would disturb one another's timings, and learn the same thing many times.
    with database.alone("calibration"):
        known = look_up()
        if known is not None:
            return known
        with undisturbed():
            device, settled = measure_device(device_type)
        database.set_rates("device", subject, {**device_record(device), **_stamp(settled)})
        return device


def _rates(
    backend: Backend,
    device: DeviceModel,
    database: Database,
    prober: _Prober | None,
    prior: BackendRates,
    others: Mapping[str, BackendRates],
) -> BackendRates:
    known = _known(backend, device, database, prober is not None)
    if known is not None:
        return known
    if prober is None or device.place.type not in backend.traits().device_types:
        return prior
    with database.alone("calibration"):
        # Another process may have been quicker.
        return _known(backend, device, database, True) or prober.probe(backend, prior, others)


def _known(backend: Backend, device: DeviceModel, database: Database, measure: bool) -> BackendRates | None:
    """What was measured before; nothing if it should be gone on with, or measured again."""
    record = database.rates("backend", _backend_subject(backend, device))
    if measure and (_due_again(record) or read_unfinished(record) is not None):
        return None
    found = read_rates(record)
    # Rates of accelerators were once kept without the processor's side.
    return None if found is not None and device.place.type != "cpu" and found.host is None else found


def _is_unknown(backend: Backend, device: DeviceModel, database: Database) -> bool:
    here = device.place.type in backend.traits().device_types
    return here and _known(backend, device, database, True) is None


def _backend_subject(backend: Backend, device: DeviceModel) -> str:
    return _subject(backend.name, backend.fingerprint(), device.device)


def _prior(
    backend: Backend, device: DeviceModel, reference: Backend, known: Mapping[str, BackendRates]
) -> BackendRates:
    """What to assume of a backend, now that the reference may be known."""
    prior = prior_rates(backend, device)
    if device.place.type == "cpu" or not reference.traits().reference or reference.name not in known:
        return prior
    return anchored(prior, prior_rates(reference, device), known[reference.name])


@dataclass
class _Prober:
    """Measures backends and keeps what it finds.

    Attributes:
        device, database, report, compile_budget_s: as ``cost_model`` takes them.
        time_left: for the backends of an accelerator, in place of a budget for each.
        reference: the backend that fills in for others, once its rates are known.
    """

    device: DeviceModel
    database: Database
    report: Report
    compile_budget_s: float
    time_left: TimeLeft | None = None
    reference: Backend | None = None

    def probe(self, backend: Backend, prior: BackendRates, others: Mapping[str, BackendRates]) -> BackendRates:
        """Rates from probes of single ops, fitted to blocks of models where the machine is quiet enough for that.

        What does not end in time is kept as far as it is known, for the next process to go on.
        """
        keep_freed_memory()  # as sessions do: without it, what costs most in large blocks is fresh pages
        subject = _backend_subject(backend, self.device)
        # Replays on an accelerator are timed by itself, whatever the processor has to do.
        busy = self.time_left is None and machine_is_busy()
        part = None if self.time_left is None else self.time_left.take()
        earlier = None if part is None else read_unfinished(self.database.rates("backend", subject))
        probes_s = self.compile_budget_s if part is None else part.probes_s
        fitted: Fit | None = None
        notes: tuple[str, ...] = ()
        with sharing.during([backend.traits().thread_pool]):
            reference = None if part is None or self.reference is None else others.get(self.reference.name)
            done = measure_rates(backend, self.device, prior, probes_s, busy=busy, earlier=earlier, reference=reference)
            unfinished = None if part is None else done.unfinished
            if not busy and unfinished is None:
                blocks_s = self.compile_budget_s if part is None else part.left_s
                fitted, notes = self._fit(backend, done.rates, others, blocks_s)
        for note in (*done.notes, *notes):
            self.report(backend.name, note)
        self.report(backend.name, f"probed in {done.run_s:.2f} s after {done.compile_s:.2f} s of compiling")
        rates = done.rates if fitted is None else fitted.rates
        record = {
            **rates_record(rates),
            **unfinished_record(unfinished),
            **_stamp(done.settled),
            "notes": [*done.notes, *notes],
        }
        self.database.set_rates("backend", subject, record)
        return rates

    def _fit(
        self, backend: Backend, probed: BackendRates, others: Mapping[str, BackendRates], compile_budget_s: float
    ) -> tuple[Fit | None, tuple[str, ...]]:
        reference = backend if backend.traits().reference else self.reference
        if reference is None:
            return None, ("not fitted to blocks of models: no reference is there to fill in",)
        place = self.device.place
        rates = {**others, backend.name: probed}
        costs = RooflineCostModel(self.device, rates)
        runs, notes = run_blocks(blocks_for(place), backend, reference, costs, place, compile_budget_s)
        together = (backend,) if backend is reference else (backend, reference)
        found = fit(runs, together, self.device, rates)
        return found, (*notes, str(found) if found is not None else "too few blocks of models ran to fit rates to them")


def _measure_apart(backend: Backend, device: DeviceModel, database: Database, report: Report) -> None:
    """Let another process probe a backend that is not known yet; one that fails there keeps its prior from now on."""
    subject = _backend_subject(backend, device)
    if (
        _known(backend, device, database, True) is not None
        or database.path is None
        or device.place.type not in backend.traits().device_types
    ):
        return
    problem = probe_apart(backend.name, device.place.type, database.path)
    if not problem:
        return
    note = f"not probed, its process did not end well: {problem}"
    report(backend.name, note)
    prior = rates_record(prior_rates(backend, device))
    database.set_rates("backend", subject, {**prior, **_stamp(True), "notes": [note]})


def _stamp(settled: bool) -> dict[str, Any]:
    return {"settled": settled, "at": time.time()}


def _due_again(record: Mapping[str, Any] | None) -> bool:
    """What was measured on a busy machine is measured again after a while."""
    if record is None or record.get("settled") is not False:
        return False
    at = record.get("at")
    return not isinstance(at, (int, float)) or time.time() - at > _RETRY_AFTER_S


def _measurements(
    backends: Sequence[Backend], device: DeviceModel, database: Database
) -> Callable[[str, str], Estimate | None]:
    fingerprints = {backend.name: backend.fingerprint() for backend in backends}

    def measured(backend: str, key: str) -> Estimate | None:
        found = database.measured(key, backend, fingerprints[backend], device.device, device.threads)
        return None if found is None else Estimate(found.median_s, "measured")

    return measured
