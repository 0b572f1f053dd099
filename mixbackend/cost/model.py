"""The cost model of this machine, as far as it is known: read from the database, never measured here.

Place: above the tables of rates; below calibration, which fills them, and a session's costs.
Input: backends, a device type, the database. Output: ``contracts.CostModel``, ``DeviceModel``, or one backend's rates.
Invariants: nothing is measured or written; what is not known here is of a shipped table, or a backend's own prior, and
says so (``provenance``, ``error``); rates hold for one (backend, fingerprint, device, threads, torch).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from mixbackend.contracts import Backend, BackendRates, DeviceModel
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.families import GPU_MAKER, family_of, maker_here
from mixbackend.cost.look import Look
from mixbackend.cost.priors import PRIOR_ERROR, anchored, prior_rates
from mixbackend.cost.rate_tables import tables_of
from mixbackend.cost.records import read_device, read_rates
from mixbackend.cost.scaled_rates import Scaled, is_product, nearest, scaled
from mixbackend.host.devices import device_name
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.storage import Database

FAILED = "failed"
"""A row of a backend's rates that says so holds its prior: probing it ended its process."""


def cost_model(
    backends: Sequence[Backend],
    device_type: str,
    database: Database,
    look: Look | None = None,
    dtypes: Collection[str] = (),
) -> RooflineCostModel:
    """The cost model for these backends on a device: what was measured here, else the table of its family.

    Args:
        backends: those that may be asked about.
        device_type: ``cpu`` or ``cuda``.
        database: where rates are looked up.
        look: at this machine, by which the table is scaled; without, what was not measured goes by backends' priors,
            and no error is stated.
        dtypes: of the graphs that are placed; errors differ by them.
    """
    table = None if look is None else table_here(device_type, look)
    device = _measured_device(device_type, database) or (table.device if table else prior_device(device_type))
    # The reference first: what is assumed of the others is held against it.
    ordered = sorted(backends, key=lambda backend: not backend.traits().reference)
    rates: dict[str, BackendRates] = {}
    for backend in ordered:
        known = _measured_rates(backend, device, database)
        if known is None and table is not None:
            stated = table.rates(backend.name, backend.availability().version, dtypes, _calls_blas(backend))
            # Rows that are further off than a backend's own prior tell less than that.
            known = stated if stated is not None and stated.error <= PRIOR_ERROR else None
        if known is None:
            known = assumed_rates(backend, device, ordered[0], rates)
            known = known if look is None or known.error else replace(known, error=PRIOR_ERROR)
            known = table.through_blas(known) if table is not None and _calls_blas(backend) else known
        rates[backend.name] = known
    return costs_from(backends, device, rates)


def _calls_blas(backend: Backend) -> bool:
    """Whether its products are those of torch's BLAS."""
    traits = backend.traits()
    return traits.reference or any(is_product(row) for row in traits.shared_rows)


def table_here(device_type: str, look: Look) -> Scaled | None:
    """The table of this machine's family, scaled; ``None`` where there is none."""
    name, threads = device_name(device_type), torch.get_num_threads()
    maker = maker_here() if device_type == "cpu" else GPU_MAKER
    machine = nearest(tables_of(family_of(name)), name, maker, threads)
    return None if machine is None else scaled(machine, look, name, threads)


def is_measured(backends: Sequence[Backend], device_type: str, database: Database) -> bool:
    """Whether all that is asked of a device was measured here, so that no table is needed."""
    device = _measured_device(device_type, database)
    if device is None:
        return False
    here = (item for item in backends if device.place.type in item.traits().device_types)
    return all(_measured_rates(item, device, database) is not None for item in here)


def measured_here(backends: Sequence[Backend], device_type: str, database: Database) -> frozenset[str]:
    """Names of backends with rates that were measured on this device."""
    device = _measured_device(device_type, database)
    if device is None:
        return frozenset()
    return frozenset(item.name for item in backends if _measured_rates(item, device, database) is not None)


def device_model(device_type: str, database: Database) -> DeviceModel:
    """The device alone."""
    return _measured_device(device_type, database) or prior_device(device_type)


def _measured_rates(backend: Backend, device: DeviceModel, database: Database) -> BackendRates | None:
    """What was measured; what a backend kept that failed when it was probed is a prior, and none of that."""
    row = rates_row(backend, device, database)
    return None if row is None or row.get(FAILED) else usable_rates(row, device)


def _measured_device(device_type: str, database: Database) -> DeviceModel | None:
    return read_device(database.rates("device", device_subject(device_name(device_type))))


def costs_from(
    backends: Sequence[Backend], device: DeviceModel, rates: Mapping[str, BackendRates]
) -> RooflineCostModel:
    """The cost model of these rates."""
    return RooflineCostModel(device, rates, {item.name: item.traits().takes_whole for item in backends})


def device_subject(name: str) -> str:
    """Under which a device's model is kept, by the device's name."""
    return _subject(name)


def rates_subject(backend: Backend, device: DeviceModel) -> str:
    """Under which a backend's rates are kept."""
    return _subject(backend.name, backend.fingerprint(), device.device)


def rates_row(backend: Backend, device: DeviceModel, database: Database) -> dict[str, Any] | None:
    """A backend's rates as they are kept; ``None`` if there are none."""
    return database.rates("backend", rates_subject(backend, device))


def usable_rates(row: Mapping[str, Any] | None, device: DeviceModel) -> BackendRates | None:
    """A row's rates; ``None`` if it does not fit."""
    found = read_rates(row)
    # Rates of accelerators were once kept without the processor's side.
    return None if found is not None and device.place.type != "cpu" and found.host is None else found


def assumed_rates(
    backend: Backend, device: DeviceModel, reference: Backend, known: Mapping[str, BackendRates]
) -> BackendRates:
    """What to assume of a backend, now that the reference may be known.

    Args:
        backend, device: what the rates are of, and where.
        reference: the first of all backends; it counts if it is a reference.
        known: rates by the name of their backend.
    """
    prior = prior_rates(backend, device)
    if device.place.type == "cpu" or not reference.traits().reference or reference.name not in known:
        return prior
    return anchored(prior, prior_rates(reference, device), known[reference.name])


def _subject(*parts: object) -> str:
    return " | ".join(map(str, (*parts, f"torch {torch.__version__}", f"threads {torch.get_num_threads()}")))
