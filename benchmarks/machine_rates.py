"""Databases that know the rates of this machine and nothing else: where measuring begins anew.

Place: below the benchmarks that compare what is decided without, or before, any tuning.
Input: a cache folder. Output: its database begun anew, with the rates that the user's own database holds, or with those
that were exported on this machine; compiled artifacts in the folder stay.
Invariants: rates are probed once, in a process of its own, into the user's database; processes that run with
``FROZEN_RATES`` probe nothing, so that all of them plan with equal costs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from mixbackend import registry
from mixbackend.calibrate.calibration import (
    ACCELERATOR_BUDGET_S,
    calibrated_costs,
)
from mixbackend.calibrate.exporting import FITTED
from mixbackend.contracts import BackendRates, MixbackendError, Provenance
from mixbackend.cost.model import device_model, device_subject, rates_row, rates_subject
from mixbackend.cost.rate_tables import Entry, Machine, Told, read_table
from mixbackend.cost.records import device_record, rates_record
from mixbackend.cost.switches import SWITCH
from mixbackend.host.devices import device_name
from mixbackend.storage import Database, private_folder
from mixbackend.storage.database import FILE

FROZEN_RATES: Mapping[str, str] = {SWITCH: "0"}
"""Environment of processes that shall plan with the rates that they find."""


def probe_machine(device_type: str = "cpu", budget_s: float = ACCELERATOR_BUDGET_S) -> list[str]:
    """Probe the device and all usable backends, as far as the user's database does not know them.

    Args:
        device_type: ``cpu`` or ``cuda``.
        budget_s: seconds for the backends of an accelerator.

    Returns:
        What was probed while the machine was too busy, in words.
    """
    backends, database = registry.resolve(), Database.open()
    calibrated_costs(backends, device_type, database, budget_s=budget_s)
    current = [backend.fingerprint() for backend in backends]
    return [
        f"{kind} {subject.split(' | ')[0]}"
        for kind, subject, value in database.all_rates()
        if value.get("settled") is False and (kind == "device" or any(mark in subject for mark in current))
    ]


def begin_anew(folder: Path, with_rates: bool = True) -> None:
    """Give a cache folder a database without decisions, measurements, verifications and quarantines.

    Args:
        folder: of a benchmark; no other process may be using it.
        with_rates: carry the rates of the user's database over; without, the new one is empty.
    """
    trusted = private_folder(folder)
    for file in trusted.glob(f"{FILE}*"):
        file.unlink()
    database = Database.open(trusted)
    for kind, subject, value in Database.open().all_rates() if with_rates else ():
        database.set_rates(kind, subject, value)
    database.close()


def exported_here(file: Path, device_type: str) -> Machine:
    """This machine's rows in a file that ``mixbackend calibrate --export`` wrote.

    Raises:
        RateTableError: it is no table.
        MixbackendError: this device, with as many threads, is not in it.
    """
    name, threads = device_name(device_type), torch.get_num_threads()
    for machine in read_table(file.read_text(encoding="utf-8"), str(file)):
        if machine.device.device == name and machine.device.threads == threads:
            return machine
    raise MixbackendError(
        f"{file} has no rates of {name} with {threads} threads", hint="write it on this machine: calibrate --export"
    )


def keep_exported(folder: Path, machine: Machine) -> None:
    """Give a folder's database exported rates as if they had been measured into it."""
    database, stamp = Database.open(private_folder(folder)), {"settled": True, "at": time.time()}
    device = replace(machine.device, provenance="probed")
    database.set_rates("device", device_subject(device.device), {**device_record(device), **stamp})
    for backend in registry.resolve():
        entry = machine.entry(backend.name)
        if entry is not None:
            database.set_rates("backend", rates_subject(backend, device), {**rates_record(_probed(entry)), **stamp})
    database.close()


def _probed(entry: Entry) -> BackendRates:
    """Rates as they were before they were exported."""
    told = zip(entry.rates.rates, entry.told, strict=True)
    rows = ((row, dtype, replace(rate, provenance=_provenance(item))) for (row, dtype, rate), item in told)
    return replace(entry.rates, rates=tuple(rows), provenance="probed")


def _provenance(told: Told) -> Provenance:
    return "probed" if told.mark == "measured" and told.source != FITTED else "prior"


def check_rates(device_type: str, machine: Machine | None) -> list[str]:
    """Names of backends that run on a device and have no own rates: their plans go by the table all the same.

    Args:
        device_type: ``cpu`` or ``cuda``.
        machine: exported; ``None`` for the user's database.

    Raises:
        MixbackendError: there are none at all.
    """
    database = Database.open()
    device = device_model(device_type, database)
    backends = [item for item in registry.resolve() if device_type in item.traits().device_types]
    if machine is not None:
        missing = [item.name for item in backends if machine.entry(item.name) is None]
    else:
        missing = [item.name for item in backends if rates_row(item, device, database) is None]
    if len(missing) == len(backends):
        raise MixbackendError("this machine has no rates of its own", hint="run mixbackend calibrate first")
    return missing
