"""Measure one backend on one device and keep what is found.

Place: between ``calibration``, which decides what is measured, and the steps: probes (``backend_rates``), blocks of
models (``block_runs``), fitting.
Input: a backend, its prior, the rates of the backends before it. Output: ``BackendRates``, and a row in the database.
Invariants: nothing here raises over what a backend does; what does not end in time is kept as far as it is known, for
the next process to go on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mixbackend.calibrate.backend_rates import COMPILE_BUDGET_S, Calibration, measure_rates
from mixbackend.calibrate.block_runs import run_blocks
from mixbackend.calibrate.blocks import blocks_for
from mixbackend.calibrate.budget import TimeLeft
from mixbackend.calibrate.device import measure_device
from mixbackend.calibrate.fitting import Fit, fit
from mixbackend.calibrate.isolated_probe import probe_isolated
from mixbackend.calibrate.measured_rows import Now, stamp
from mixbackend.calibrate.timing import Clock
from mixbackend.contracts import Backend, BackendRates, DeviceModel
from mixbackend.cost.model import FAILED, rates_row, rates_subject
from mixbackend.cost.priors import prior_rates
from mixbackend.cost.records import rates_record, read_unfinished, unfinished_record
from mixbackend.cost.unfinished import Unfinished
from mixbackend.host.devices import device_name
from mixbackend.host.load import machine_is_busy
from mixbackend.host.memory import keep_freed_memory
from mixbackend.host.threads import sharing
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.storage import Database

Report = Callable[[str, str], None]
"""Takes (backend, note); the default writes to the log."""

_logger = logging.getLogger("mixbackend.calibration")


def log_note(backend: str, note: str) -> None:
    """The default report."""
    _logger.info("%s: %s", backend, note)


class MeasureRates(Protocol):
    """Probes a backend, as ``measure_rates`` does."""

    def __call__(
        self,
        backend: Backend,
        device: DeviceModel,
        prior: BackendRates,
        compile_budget_s: float = COMPILE_BUDGET_S,
        *,
        busy: bool = False,
        earlier: Unfinished | None = None,
        reference: BackendRates | None = None,
    ) -> Calibration:
        """See ``measure_rates``."""
        ...


@dataclass(frozen=True)
class Instruments:
    """What calibration measures with; a test passes others.

    Attributes:
        device_name, measure_device: the device of a type, by name, and measured.
        measure_rates: probes a backend in this process.
        probe_isolated: probes one in a process of its own; says why that failed.
        blocks: whether rates are fitted to blocks of models.
        clock: monotonic seconds, by which backends share their time.
        now: seconds since the epoch.
    """

    device_name: Callable[[str], str] = device_name
    measure_device: Callable[[str], tuple[DeviceModel, bool]] = measure_device
    measure_rates: MeasureRates = measure_rates
    probe_isolated: Callable[[str, str, Path], str] = probe_isolated
    blocks: bool = True
    clock: Clock = time.perf_counter
    now: Now = time.time


@dataclass
class Prober:
    """See the module's docstring.

    Attributes:
        device: where it is measured.
        database: where rows are kept.
        report: told of each probe that did not run, with the reason.
        compile_budget_s: seconds of compiling per backend, for its probes and again for its blocks.
        instruments: what it measures with.
        time_left: for all backends together, in place of a budget for each.
        reference: the backend that fills in for others, once its rates are known.
    """

    device: DeviceModel
    database: Database
    report: Report
    compile_budget_s: float
    instruments: Instruments = field(default_factory=Instruments)
    time_left: TimeLeft | None = None
    reference: Backend | None = None

    def probe(self, backend: Backend, prior: BackendRates, others: Mapping[str, BackendRates]) -> BackendRates:
        """Rates from probes of single ops, fitted to blocks of models where the machine is quiet enough for that.

        What does not end in time is kept as far as it is known, for the next process to go on.
        """
        keep_freed_memory()  # as sessions do: without it, what costs most in large blocks is fresh pages
        # Replays on an accelerator are timed by itself, whatever the processor has to do.
        beside = self.device.place.type != "cpu"
        busy = not beside and machine_is_busy()
        part = None if self.time_left is None else self.time_left.take()
        earlier = None if part is None else read_unfinished(rates_row(backend, self.device, self.database))
        probes_s = self.compile_budget_s if part is None else part.probes_s
        fitted: Fit | None = None
        notes: tuple[str, ...] = ()
        with sharing.during([backend.traits().thread_pool]):
            reference = None if not beside or self.reference is None else others.get(self.reference.name)
            done = self.instruments.measure_rates(
                backend, self.device, prior, probes_s, busy=busy, earlier=earlier, reference=reference
            )
            unfinished = None if part is None else done.unfinished
            if not busy and unfinished is None:
                blocks_s = self.compile_budget_s if part is None else part.left_s
                fitted, notes = self._fit(backend, done.rates, others, blocks_s)
        rates = done.rates if fitted is None else fitted.rates
        self._keep(backend, rates, done, unfinished, notes, None if fitted is None else fitted.error_after)
        return rates

    def probe_isolated(self, backend: Backend) -> None:
        """Let another process probe a backend; one that fails there keeps its prior from now on."""
        if self.database.path is None:
            return
        problem = self.instruments.probe_isolated(backend.name, self.device.place.type, self.database.path)
        if not problem:
            return
        note = f"not probed, its process did not end well: {problem}"
        self.report(backend.name, note)
        prior = rates_record(prior_rates(backend, self.device))
        row = {**prior, **stamp(True, self.instruments.now), FAILED: True, "notes": [note]}
        self.database.set_rates("backend", rates_subject(backend, self.device), row)

    def _fit(
        self, backend: Backend, probed: BackendRates, others: Mapping[str, BackendRates], compile_budget_s: float
    ) -> tuple[Fit | None, tuple[str, ...]]:
        reference = backend if backend.traits().reference else self.reference
        if reference is None:
            return None, ("not fitted to blocks of models: no reference is there to fill in",)
        place = self.device.place
        rates = {**others, backend.name: probed}
        costs = RooflineCostModel(self.device, rates)
        blocks = blocks_for(place) if self.instruments.blocks else ()
        runs, notes = run_blocks(blocks, backend, reference, costs, place, compile_budget_s)
        together = (backend,) if backend is reference else (backend, reference)
        found = fit(runs, together, self.device, rates)
        return found, (*notes, str(found) if found is not None else "too few blocks of models ran to fit rates to them")

    def _keep(
        self,
        backend: Backend,
        rates: BackendRates,
        done: Calibration,
        unfinished: Unfinished | None,
        notes: tuple[str, ...],
        error: float | None,
    ) -> None:
        """Report what was found, and write the backend's row, with how far it was off where that is known."""
        for note in (*done.notes, *notes):
            self.report(backend.name, note)
        self.report(backend.name, f"probed in {done.run_s:.2f} s after {done.compile_s:.2f} s of compiling")
        row = {
            **rates_record(rates),
            **unfinished_record(unfinished),
            **stamp(done.settled, self.instruments.now),
            **({} if error is None else {"error": error}),
            "build_s": done.build_s,
            "notes": [*done.notes, *notes],
        }
        self.database.set_rates("backend", rates_subject(backend, self.device), row)
