"""Known, or measured now: what is missing in the tables of rates is measured once and kept on disk.

Place: the face of this folder: asked by ``mixbackend calibrate``, benchmarks and ``probe_worker``; no compilation of a
model asks. ``cost.model`` reads what is kept.
Input: backends, a device type, the database. Output: ``contracts.CostModel``, and rows in the database.
On an accelerator compilers take seconds for each probe: all backends share a fixed time (``ACCELERATOR_BUDGET_S``),
the slow ones last, what was learned is kept backend by backend, and the next process goes on where this one stopped.
Invariants: measuring happens once per (backend, fingerprint, device, threads, torch), and again half an hour later if
the machine was too busy for the timings to agree; one thread measures at a time, and one process; nothing here raises
over what a backend does; where measuring is forbidden the answer is what is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from mixbackend import registry
from mixbackend.backends.common import forks
from mixbackend.calibrate.backend_rates import COMPILE_BUDGET_S
from mixbackend.calibrate.budget import TimeLeft, turn
from mixbackend.calibrate.measured_rows import is_due, stamp
from mixbackend.calibrate.prober import Instruments, Prober, Report, log_note
from mixbackend.contracts import Backend, BackendRates, CostModel, DeviceModel
from mixbackend.cost.model import (
    assumed_rates,
    cost_model,
    costs_from,
    device_model,
    device_subject,
    rates_row,
    usable_rates,
)
from mixbackend.cost.records import device_record, read_device, read_unfinished
from mixbackend.cost.switches import measuring_is_allowed
from mixbackend.host.undisturbed import undisturbed
from mixbackend.storage import Database

ACCELERATOR_BUDGET_S = 45.0
"""Seconds in which a process measures the backends of an accelerator."""

_INSTRUMENTS = Instruments()
_measuring = forks.long_lock()


def foreign(backends: Sequence[Backend]) -> frozenset[str]:
    """Backends of other distributions: where the user asked for measuring, a crash ends a process of its own."""
    origins = {info.name: info.origin for info in registry.backends() if info.origin != registry.IN_PROCESS}
    others = {name for name, origin in origins.items() if origin.partition(" ")[0] != registry.OURS}
    return frozenset(others.intersection(item.name for item in backends))


def calibrated_costs(
    backends: Sequence[Backend],
    device_type: str,
    database: Database,
    *,
    report: Report = log_note,
    compile_budget_s: float = COMPILE_BUDGET_S,
    isolated: Collection[str] = (),
    budget_s: float | None = None,
    instruments: Instruments = _INSTRUMENTS,
    begin: Callable[[str, int], object] = lambda name, left: None,
) -> CostModel:
    """The cost model for these backends on a device; what is not known yet is measured.

    That takes about a second for the device, two for each backend, and the time that a backend takes to compile its
    probes and blocks.

    Args:
        backends: those that may be asked about.
        device_type: ``cpu`` or ``cuda``.
        database: where measurements are looked up and kept.
        report: told of each probe that did not run, with the reason.
        compile_budget_s: seconds of compiling per backend, for its probes and again for its blocks.
        isolated: names of backends that are probed in processes of their own.
        budget_s: seconds for all backends together; what is not known by then is left for the next process. By default
            the processor's backends have ``compile_budget_s`` each, and an accelerator's ``ACCELERATOR_BUDGET_S``.
        instruments: what to measure with.
        begin: told the name of each backend that is measured now, and how many come after it.
    """
    if not measuring_is_allowed():
        return cost_model(backends, device_type, database)
    with _measuring:
        device = _device(device_type, database, instruments)
        prober = Prober(device, database, report, compile_budget_s, instruments)
        turns = sorted(backends, key=turn)
        left = [item.name for item in turns if _is_unknown(item, device, database, instruments)]
        if device.place.type != "cpu" or budget_s is not None:
            seconds = ACCELERATOR_BUDGET_S if budget_s is None else budget_s
            prober.time_left = TimeLeft(seconds, len(left), instruments.clock)
        for backend in backends:
            if backend.name in isolated and backend.name in left:
                begin(backend.name, len(left) - 1)
                left.remove(backend.name)
                prober.probe_isolated(backend)
        rates: dict[str, BackendRates] = {}
        for backend in turns:
            if backend.name in left:
                left.remove(backend.name)
                begin(backend.name, len(left))
            prior = assumed_rates(backend, device, turns[0], rates)
            rates[backend.name] = _known_or_probed(backend, prober, prior, rates)
            if backend.traits().reference:
                prober.reference = backend
        return costs_from(backends, device, rates)


def calibrated_device(device_type: str, database: Database, *, instruments: Instruments = _INSTRUMENTS) -> DeviceModel:
    """The device alone; measured if it is not known yet."""
    if not measuring_is_allowed():
        return device_model(device_type, database)
    with _measuring:
        return _device(device_type, database, instruments)


def _device(device_type: str, database: Database, instruments: Instruments) -> DeviceModel:
    subject = device_subject(instruments.device_name(device_type))

    def look_up() -> DeviceModel | None:
        row = database.rates("device", subject)
        return None if is_due(row, instruments.now) else read_device(row)

    known = look_up()
    if known is not None:
        return known
    # Processes that start together would disturb one another's timings, and learn the same thing many times.
    with database.alone("calibration"):
        known = look_up()
        if known is not None:
            return known
        with undisturbed():
            device, settled = instruments.measure_device(device_type)
        database.set_rates("device", subject, {**device_record(device), **stamp(settled, instruments.now)})
        return device


def _known_or_probed(
    backend: Backend, prober: Prober, prior: BackendRates, others: Mapping[str, BackendRates]
) -> BackendRates:
    device, database, instruments = prober.device, prober.database, prober.instruments
    known = _known(backend, device, database, instruments)
    if known is not None:
        return known
    if device.place.type not in backend.traits().device_types:
        return prior
    with database.alone("calibration"):
        # Another process may have been quicker.
        return _known(backend, device, database, instruments) or prober.probe(backend, prior, others)


def _known(backend: Backend, device: DeviceModel, database: Database, instruments: Instruments) -> BackendRates | None:
    """What was measured before; ``None`` if it should be gone on with, or measured again."""
    row = rates_row(backend, device, database)
    if is_due(row, instruments.now) or read_unfinished(row) is not None:
        return None
    return usable_rates(row, device)


def _is_unknown(backend: Backend, device: DeviceModel, database: Database, instruments: Instruments) -> bool:
    here = device.place.type in backend.traits().device_types
    return here and _known(backend, device, database, instruments) is None
