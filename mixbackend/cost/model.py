"""The cost model of this machine, as far as it is known: read from the database, never measured here.

Place: above the tables of rates; below calibration, which fills them, and a session's costs.
Input: backends, a device type, the database. Output: ``contracts.CostModel``, ``DeviceModel``, or one backend's rates.
Invariants: nothing is measured or written; what is not known is a prior and says so (``provenance``); rates hold for
one (backend, fingerprint, device, threads, torch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mixbackend.contracts import Backend, BackendRates, CostModel, DeviceModel, Estimate
from mixbackend.cost.device_priors import prior_device
from mixbackend.cost.priors import anchored, prior_rates
from mixbackend.cost.records import read_device, read_rates
from mixbackend.host.devices import device_name
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.storage import Database


def cost_model(backends: Sequence[Backend], device_type: str, database: Database) -> CostModel:
    """The cost model for these backends on a device, from what was measured before.

    Args:
        backends: those that may be asked about.
        device_type: ``cpu`` or ``cuda``.
        database: where measurements are looked up.
    """
    device = device_model(device_type, database)
    # The reference first: what is assumed of the others is held against it.
    ordered = sorted(backends, key=lambda backend: not backend.traits().reference)
    rates: dict[str, BackendRates] = {}
    for backend in ordered:
        known = usable_rates(rates_row(backend, device, database), device)
        rates[backend.name] = known or assumed_rates(backend, device, ordered[0], rates)
    return costs_from(backends, device, rates, database)


def device_model(device_type: str, database: Database) -> DeviceModel:
    """The device alone."""
    return read_device(database.rates("device", device_subject(device_name(device_type)))) or prior_device(device_type)


def costs_from(
    backends: Sequence[Backend], device: DeviceModel, rates: Mapping[str, BackendRates], database: Database
) -> CostModel:
    """The cost model of these rates; a region that was measured costs what was measured."""
    return RooflineCostModel(device, rates, _measurements(backends, device, database))


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
        backend, device: whose rates, and where.
        reference: the first of all backends; it counts if it is a reference.
        known: rates by the name of their backend.
    """
    prior = prior_rates(backend, device)
    if device.place.type == "cpu" or not reference.traits().reference or reference.name not in known:
        return prior
    return anchored(prior, prior_rates(reference, device), known[reference.name])


def _subject(*parts: object) -> str:
    return " | ".join(map(str, (*parts, f"torch {torch.__version__}", f"threads {torch.get_num_threads()}")))


def _measurements(
    backends: Sequence[Backend], device: DeviceModel, database: Database
) -> Callable[[str, str], Estimate | None]:
    fingerprints = {backend.name: backend.fingerprint() for backend in backends}

    def measured(backend: str, key: str) -> Estimate | None:
        found = database.measured(key, backend, fingerprints[backend], device.device, device.threads)
        return None if found is None else Estimate(found.median_s, "measured")

    return measured
