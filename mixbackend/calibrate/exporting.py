"""What was measured on this machine as a machine of a shipped table.

Place: above the tables of rates; asked by ``mixbackend calibrate --export``.
Input: backends, a device type, the database that calibration filled. Output: ``rate_tables.Machine``.
Invariants: nothing is measured but the look; rows that no probe told are marked as documented, with a larger error; a
backend that was not measured has no entry.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mixbackend.calibrate.blocks import DTYPE
from mixbackend.contracts import Backend, DeviceModel, MixbackendError
from mixbackend.contracts.build_seconds import BuildSeconds
from mixbackend.cost.families import GPU_MAKER, maker_here
from mixbackend.cost.look import DTYPES, look_at
from mixbackend.cost.model import device_model, rates_row, usable_rates
from mixbackend.cost.priors import PRIOR_ERROR
from mixbackend.cost.rate_tables import Entry, Machine, Told
from mixbackend.storage import Database

FITTED = "fitted"
"""The source of rows that no probe told."""
UNFITTED_ERROR = 0.3
"""Of rates that no block of a model was held against."""
_DEVICE_ERROR = 0.1
_LEAST_ERROR = 0.05
_FITTED = 2.0
"""Times the error, of rows that no probe told, in a backend with rates that were fitted to blocks in this dtype."""


def machine_as_measured(backends: Sequence[Backend], device_type: str, database: Database) -> Machine:
    """This machine's rows.

    Args:
        backends: their rates are looked up.
        device_type: ``cpu`` or ``cuda``.
        database: where calibration kept them.

    Raises:
        MixbackendError: the device was not measured.
    """
    device = device_model(device_type, database)
    if device.provenance != "probed":
        raise MixbackendError(f"{device.device} was not measured", hint="run mixbackend calibrate first")
    dtypes = [dtype for dtype in DTYPES if dtype in dict(device.flops_per_s)]
    entries = (_entry(item, device, rates_row(item, device, database)) for item in backends)
    return Machine(
        maker=maker_here() if device_type == "cpu" else GPU_MAKER,
        device=device,
        look=look_at(device_type, dtypes),
        mark="measured",
        error=_DEVICE_ERROR,
        sources={
            "measured": f"mixbackend calibrate on {device.device}, {device.threads} threads, "
            f"torch {torch.__version__}, {time.strftime('%Y-%m-%d')}",
            FITTED: "no probe of its own: the backend's prior, scaled until blocks of models take what they took",
            "documented": "the backend's own prior (Backend.prior), or the usual shares of a device's peak",
        },
        entries=tuple(entry for entry in entries if entry is not None),
    )


def _entry(backend: Backend, device: DeviceModel, row: Mapping[str, Any] | None) -> Entry | None:
    rates = usable_rates(row, device)
    if row is None or rates is None or device.place.type not in backend.traits().device_types:
        return None
    known = row.get("error")
    fitted = isinstance(known, (int, float))
    if not fitted and all(rate.provenance != "probed" for _, _, rate in rates.rates):
        return None
    error = max(float(known), _LEAST_ERROR) if isinstance(known, (int, float)) else UNFITTED_ERROR
    stated = backend.build_seconds(device.place.type)
    build_s = row.get("build_s")
    build = BuildSeconds(float(build_s), stated.op_s) if isinstance(build_s, (int, float)) and build_s else stated
    told = tuple(_told(rate.provenance == "probed", fitted and dtype == DTYPE, error) for _, dtype, rate in rates.rates)
    return Entry(rates, backend.availability().version, build, error, told)


def _told(probed: bool, fitted: bool, error: float) -> Told:
    if probed:
        return Told("measured", "measured", error)
    return Told(FITTED, "measured", _FITTED * error) if fitted else Told("documented", "documented", PRIOR_ERROR)
