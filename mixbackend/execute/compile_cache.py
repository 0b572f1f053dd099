"""The compile cache: regions become code once, in this process and, where backends allow it, on this machine.

Place: between the cut and the stitcher. Input: a backend and a region. Output: ``Compiled``: code, and its origin.
Order: what this process compiled for an equal region; an artifact of an earlier process; the backend's compiler.
Invariants: equal regions of one backend have the very same code; a region that failed is not compiled again (see
``failures``); an artifact that its backend cannot use is thrown away. While fuel is out, the reference compiles.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from mixbackend.backends.common import forks
from mixbackend.contracts import CONTRACT_VERSION, Backend, CompiledRegion, Region
from mixbackend.contracts.graph import accelerator
from mixbackend.execute.bindings import StoredBinder
from mixbackend.execute.failures import Failures
from mixbackend.execute.kernel_processes import expect_kernels_of
from mixbackend.execute.region_code import RegionCode
from mixbackend.execute.region_errors import describe_region
from mixbackend.host.debug import Fuel
from mixbackend.host.devices import device_name
from mixbackend.host.threads import sharing
from mixbackend.reporting import Event, EventLog
from mixbackend.storage import ArtifactStore, Label, Storage, artifact_key


@dataclass(frozen=True)
class Compiled:
    """A compiled region and how it came about.

    Attributes:
        code: what the backend returned, with what all executors that run it share.
        cached: whether it was loaded from the artifact store.
        reused_from: id of the region of the same key that was compiled first, ``None`` if it was this one.
    """

    code: RegionCode
    cached: bool = False
    reused_from: str | None = None

    @property
    def region(self) -> CompiledRegion:
        """What the backend returned."""
        return self.code.compiled

    @property
    def backend(self) -> str:
        """The backend that compiled it."""
        return self.code.backend.name


@dataclass(frozen=True)
class _Made:
    """What a backend returned, and whether it was loaded."""

    region: CompiledRegion
    cached: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    compiled: Compiled
    region_id: str


class CompileCache:
    """See the module's docstring.

    Args:
        reference: the backend that runs exactly what eager runs.
        fingerprints: of the backends, by name.
        storage: where artifacts are kept.
        failures: says what is not to be compiled.
        events: told how the cores are shared.
        fuel: how many more regions may leave the reference.
        behind: whether the reference stands in for backends that run kernels while they compile, or keep nothing of it.
    """

    def __init__(
        self,
        reference: Backend,
        fingerprints: Mapping[str, str],
        storage: Storage,
        failures: Failures,
        events: EventLog,
        fuel: Fuel,
        behind: bool = False,
    ) -> None:
        self._reference = reference
        self._fingerprints = fingerprints
        self._storage = storage
        self._failures = failures
        self._events = events
        self._fuel = fuel
        self._behind = behind
        self._lock = forks.reentrant_lock()
        self._compiling = forks.long_reentrant_lock()
        self._known: dict[tuple[str, str], _Known] = {}

    def compile(self, backend: Backend, region: Region) -> Compiled:
        """Compile a region, or take what was compiled before; the reference compiles it when fuel is out.

        Raises:
            Exception: whatever the backend raises.
        """
        with self._lock:
            self._failures.refuse_quarantined(backend, region)
            known = self._known.get((backend.name, region.key))
            if known is not None:
                return replace(known.compiled, reused_from=known.region_id)
            owner = self._owner(backend, region)
        with nullcontext() if owner.traits().concurrent_compile else self._compiling:
            made = self._load(owner, region) or self._compile_and_keep(owner, region)
            made = self._with_stored_bindings(owner, region, made)
        metas = tuple(item.meta for item in region.inputs) if made.region.preconditions else None
        code = RegionCode(owner, made.region, self._failures.confirmations(owner, region), metas)
        compiled = Compiled(code, made.cached)
        with self._lock:
            # Another thread that compiled it meanwhile was first.
            known = self._known.setdefault((backend.name, region.key), _Known(compiled, region.id))
        return compiled if known.compiled is compiled else replace(known.compiled, reused_from=known.region_id)

    def _owner(self, backend: Backend, region: Region) -> Backend:
        """What compiles a region that was placed on a backend."""
        traits = backend.traits()
        if traits.reference or (self._behind and _device_type(region) not in traits.compiles_behind):
            return self._reference
        return backend if self._fuel.take(partial(_told, backend, region)) else self._reference

    def compile_all(self, jobs: Sequence[tuple[Backend, Region]]) -> Iterator[Compiled]:
        """Compile the regions of a graph, in their order; several at once where their backends allow it.

        Raises:
            Exception: whatever a backend raises, when its region's turn comes; what else was compiled is kept.
        """
        self._share_cores({backend.traits().thread_pool for backend, _ in jobs})
        ahead = {} if self._fuel.limited else _first_of_each(jobs)
        workers = max(1, min(len(ahead), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))
        with ThreadPoolExecutor(workers, "mixbackend-compile") as pool:
            futures = {key: pool.submit(self.compile, *job) for key, job in ahead.items()}
            for backend, region in jobs:
                future = futures.pop((backend.name, region.key), None)
                yield self.compile(backend, region) if future is None else future.result()

    @property
    def store(self) -> ArtifactStore:
        """Where artifacts are looked for."""
        return self._storage.store

    def quarantine(self, backend: Backend, region: Region, reason: str) -> None:
        """Forget what a backend compiled for a region, and let it compile none like it; see ``Failures.quarantine``."""
        self._failures.quarantine(backend, region, reason)
        with self._lock:
            self._known.pop((backend.name, region.key), None)

    def _share_cores(self, pools: Iterable[str]) -> None:
        """Keep the pools of these regions from fighting while this cache lives."""
        done = sharing.use(self, pools, parked=True)
        if done.outcome != "alone":
            self._events.append(Event("threads", "", "", "", str(done)))

    def _compile_and_keep(self, backend: Backend, region: Region) -> _Made:
        expect_kernels_of(backend, region)
        compiled = backend.compile(region)
        if compiled.artifact is not None and not region.is_local:
            self._storage.store.put(self.artifact_key(backend, region), compiled.artifact, self.label(backend, region))
        return _Made(compiled)

    def _with_stored_bindings(self, backend: Backend, region: Region, made: _Made) -> _Made:
        """Code for known values that takes long to make goes through the store as well."""
        prepare = made.region.prepare_binding
        if prepare is None or region.is_local:
            return made
        key = partial(self.artifact_key, backend, region)
        label = self.label(backend, region)
        label = replace(label, region=f"{label.region} with values inside")
        binder = StoredBinder(prepare, self._storage.store, key, label)
        return replace(made, region=replace(made.region, bind=binder))

    def _load(self, backend: Backend, region: Region) -> _Made | None:
        """A region compiled by an earlier process; an artifact that its backend cannot use is thrown away."""
        if backend.traits().reference or region.is_local:
            return None
        key, store = self.artifact_key(backend, region), self._storage.store
        artifact = store.get(key)
        if artifact is None:
            return None
        try:
            return _Made(backend.load(region, artifact), cached=True)
        except FileNotFoundError:
            store.remove(key)
            return None
        except Exception as error:
            store.discard(key, f"backend {backend.name!r} cannot load it: {error}")
            return None

    def artifact_key(self, backend: Backend, region: Region, values: str = "") -> str:
        """Name in the store of a region, or of the region with values inside that have this digest."""
        fingerprint, weights = self._fingerprints[backend.name], backend.traits().weights
        key = f"{region.key} with {values}" if values else region.key
        return artifact_key(key, backend.name, fingerprint, weights, _device_of(region))

    def label(self, backend: Backend, region: Region) -> Label:
        """Which backend makes an artifact, and for which device."""
        fingerprint, weights = self._fingerprints[backend.name], backend.traits().weights
        return Label(backend.name, fingerprint, _device_of(region), CONTRACT_VERSION, weights, region.key)


def _told(backend: Backend, region: Region) -> str:
    return f"{describe_region(region)} on {backend.name}"


def _first_of_each(jobs: Sequence[tuple[Backend, Region]]) -> dict[tuple[str, str], tuple[Backend, Region]]:
    """The distinct jobs that may run beside others; none where there are no others."""
    distinct: dict[tuple[str, str], tuple[Backend, Region]] = {}
    for backend, region in jobs:
        distinct.setdefault((backend.name, region.key), (backend, region))
    beside = {key: job for key, job in distinct.items() if job[0].traits().concurrent_compile}
    return beside if len(distinct) > 1 else {}


def _device_of(region: Region) -> str:
    """Name of the device that a region works on, with the product."""
    return device_name(_device_type(region))


def _device_type(region: Region) -> str:
    return accelerator([item.meta for item in region.inputs] + [item.meta for item in region.outputs])
