"""Databases that know the rates of this machine and nothing else: where measuring begins anew.

Place: below the benchmarks that compare what is decided without, or before, any tuning.
Input: a cache folder. Output: its database begun anew, with the rates that the user's own database holds; compiled
artifacts in the folder stay.
Invariants: rates are probed once, in a process of its own, into the user's database; processes that run with
``FROZEN_RATES`` probe nothing, so that all of them plan with equal costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mixbackend import registry
from mixbackend.calibrate.calibration import (
    ACCELERATOR_BUDGET_S,
    calibrated_costs,
)
from mixbackend.cost.looking import SWITCH
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
        folder: of a benchmark; nobody else may be using it.
        with_rates: carry the rates of the user's database over; without, the new one is empty.
    """
    trusted = private_folder(folder)
    for file in trusted.glob(f"{FILE}*"):
        file.unlink()
    database = Database.open(trusted)
    for kind, subject, value in Database.open().all_rates() if with_rates else ():
        database.set_rates(kind, subject, value)
    database.close()
