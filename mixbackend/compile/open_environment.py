"""Opens the environment of a configuration: finds the backends, and joins costs, caches, planner and lock file.

Place: asked once per configuration by ``mixture``. Input: a configuration. Output: an ``Environment``.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from mixbackend import registry
from mixbackend.configuration import Config
from mixbackend.contracts import Backend, taking_effects
from mixbackend.contracts.asked import Fault
from mixbackend.cost.first_use import CostsAtFirstUse
from mixbackend.cost.switches import TABLES, measuring_is_allowed
from mixbackend.execute.compile_cache import CompileCache
from mixbackend.execute.failures import Failures
from mixbackend.host.background import Background
from mixbackend.host.debug import DebugSettings, Fuel
from mixbackend.host.memory import keep_freed_memory
from mixbackend.host.warm_up import WarmUp
from mixbackend.plan.environment import Environment
from mixbackend.plan.planner import Planner
from mixbackend.plan.stored_plans import StoredPlans
from mixbackend.reporting import Event, EventLog
from mixbackend.storage import Storage, StorageEvent

if TYPE_CHECKING:
    from mixbackend.locking.lock import Lock


def open_environment(
    config: Config,
    records: bool = False,
    behind: bool = False,
    found: registry.Resolution | None = None,
    kind: type[Storage] = Storage,
    warm_up: WarmUp | None = None,
) -> Environment:
    """Make what the graphs of a configuration share; nothing on disk is opened yet.

    Args:
        config: what the user asked for.
        records: whether what runs on a GPU is recorded into CUDA graphs.
        behind: whether this process works behind another one and may be stopped at any moment: the database is only
            read, and nothing is compiled that runs kernels meanwhile.
        found: the backends, where they are not those that the configuration names.
        kind: of what is kept on disk.
        warm_up: while it goes on, trying is free.

    Raises:
        UnknownBackendError, BackendUnavailableError: as ``registry.resolve``.
    """
    keep_freed_memory()
    events, debug = EventLog(), DebugSettings.from_environment()
    found = found or registry.resolution(config.backends, config.required_backends())
    asked = tuple(item.emitting_to(partial(_note_fault, events)) for item in found.backends)
    measures = config.search.mode == "measure"
    backends: tuple[Backend, ...] = tuple(item.for_measuring() if measures else item for item in asked)
    reference = next(backend for backend in backends if backend.traits().reference)
    fingerprints = {backend.name: backend.fingerprint() for backend in backends}
    storage = kind(
        config.cache.dir,
        config.cache.remote,
        config.cache.max_gb,
        fingerprints,
        partial(_note_storage, events),
        behind,
    )
    lock = _lock(config, backends, events)
    costs = CostsAtFirstUse(config, backends, storage, records)
    facts = (f"records={records}", f"measures={measures}", f"looks={measuring_is_allowed()}")
    # What a backend of this process answers, and what a table that is given says, has no key.
    stored = None
    if not (found.local or os.environ.get(TABLES)):
        stored = StoredPlans(storage, config, fingerprints, taking_effects(backends), facts)
    failures = Failures(storage, fingerprints)
    improves = not measures and config.objective == "latency"
    return Environment(
        config,
        records,
        debug,
        events,
        backends,
        reference,
        fingerprints,
        found.skipped,
        storage,
        Planner(backends, config.preferences(), dict(config.min_region), costs, events, lock, stored, improves),
        failures,
        CompileCache(reference, fingerprints, storage, failures, events, Fuel(debug.fuel), behind),
        lock,
        Background(config.background_limits(), lambda: storage.builder_lock, warm_up=warm_up),
    )


def _lock(config: Config, backends: tuple[Backend, ...], events: EventLog) -> Lock | None:
    """The lock file of a configuration, ``None`` if there is none: then nothing of it is loaded."""
    if config.lock.path is None:
        return None
    from mixbackend.locking.lock import Lock

    return Lock(config.lock.path, config.lock.frozen, backends, events)


def _note_fault(events: EventLog, fault: Fault) -> None:
    """A plug-in that did not answer as the contract has it: others go on, and the report says so."""
    events.append(Event("backend_error", "", "", fault.backend, str(fault)))


def _note_storage(events: EventLog, found: StorageEvent) -> None:
    """An entry of the cache that was removed, or could not be read or written."""
    events.append(Event("storage", "", "", "", f"{found.kind}: {found.detail}"))
