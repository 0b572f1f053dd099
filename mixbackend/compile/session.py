"""A session: everything that the graphs of one configuration share.

Place: made once per configuration; passed to every stage that needs backends, costs or caches.
Input: a ``Config``. Output: answers to "who may run this", "what does it cost", "was this compiled before".
Invariants: identical regions are compiled once; a region that failed stays quarantined for its backend's fingerprint.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial

from mixbackend import registry
from mixbackend.configuration import Config
from mixbackend.contracts import Backend, CompiledRegion, OpGraph, Plan, QuarantinedError, Region
from mixbackend.contracts.asked import Fault
from mixbackend.contracts.graph import accelerator
from mixbackend.cost.costs import SessionCosts
from mixbackend.execute.bindings import StoredBinder
from mixbackend.execute.confirmations import Confirmations
from mixbackend.execute.region_code import RegionCode
from mixbackend.host.debug import DebugSettings, Fuel
from mixbackend.host.devices import device_name, devices_here
from mixbackend.host.memory import keep_freed_memory
from mixbackend.host.threads import sharing
from mixbackend.locking.lock import Lock
from mixbackend.partitioner.appraise import Appraisal, appraise
from mixbackend.partitioner.explain import Question, Saving, savings, single_savings
from mixbackend.partitioner.fixed import MisfitError, fixed_plan, with_refusals
from mixbackend.partitioner.ledger import Ledger
from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.reporting import Event, EventLog
from mixbackend.storage import ArtifactStore, Database, Here, Label, artifact_key, tidy

MIXTURE_MARGIN = 0.04
"""A mixture must promise to save this share over the best single backend: estimates are no better, and one region has
fewer surprises than many."""
CORRECTED_MARGIN = 0.01
"""The same where measurements correct the costs: less than noise is no reason to use one more backend."""


@dataclass(frozen=True)
class Compiled:
    """A compiled region and how it came about.

    Attributes:
        code: what the backend returned, with what all who run it share.
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
        """Who compiled it."""
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


class Session:
    """See the module's docstring.

    Args:
        config: what the user asked for.
        records: whether what runs on a GPU is recorded into CUDA graphs.

    Raises:
        UnknownBackendError, BackendUnavailableError: as ``registry.resolve``.
    """

    def __init__(self, config: Config, records: bool = False) -> None:
        keep_freed_memory()
        self.config = config
        self.records = records
        self.debug = DebugSettings.from_environment()
        self.events = EventLog()
        found = registry.resolution(config.backends, config.required_backends())
        self.skipped = found.skipped
        told = tuple(item.telling(self._fault) for item in found.backends)
        measures = config.search.mode == "measure"
        self.backends: tuple[Backend, ...] = tuple(item.for_measuring() if measures else item for item in told)
        self._by_name = {backend.name: backend for backend in self.backends}
        self._fingerprints = {backend.name: backend.fingerprint() for backend in self.backends}
        self._fuel = Fuel(self.debug.fuel)
        self._lock = threading.RLock()
        self._compiling = threading.RLock()
        self._known: dict[tuple[str, str], _Known] = {}
        self._quarantined: dict[tuple[str, str], str | None] = {}
        self.costs = SessionCosts(config, self.backends, lambda: self.database, records)

    @cached_property
    def database(self) -> Database:
        """Measurements, rates, decisions, quarantines of this machine, and what its fleet shares."""
        database = Database.open(self.config.cache.dir, remote=self.config.cache.remote)
        tidy(database, lambda: Here(self._fingerprints, devices_here(), complete=False))
        return database

    @cached_property
    def store(self) -> ArtifactStore:
        """Compiled regions on disk."""
        cache = self.config.cache
        return ArtifactStore.open(cache.dir, remote=cache.remote, max_gb=cache.max_gb)

    @cached_property
    def lock(self) -> Lock | None:
        """The plans that were locked, ``None`` if the configuration names no file."""
        lock = self.config.lock
        return None if lock.path is None else Lock(lock.path, lock.frozen, self.backends, self.events)

    def backend(self, name: str) -> Backend:
        """A backend of this session."""
        return self._by_name[name]

    @property
    def reference(self) -> Backend:
        """The backend that runs exactly what eager runs."""
        return next(backend for backend in self.backends if backend.traits().reference)

    def _fault(self, fault: Fault) -> None:
        """A plug-in that did not answer as the contract has it: others go on, and the report says so."""
        self.events.append(Event("backend_error", "", "", fault.backend, str(fault)))

    def place(
        self,
        graph: OpGraph,
        exclusions: frozenset[tuple[str, str]] = frozenset(),
        pinned: Mapping[str, str] | None = None,
        choice: Choice = DEFAULT,
        corrections: Mapping[tuple[str, str], float] | None = None,
    ) -> Plan:
        """Plan a graph with this session's backends, costs and preferences.

        Args:
            graph: what to place.
            exclusions: quarantined (node, backend name) pairs.
            pinned: node name to backend name: what stays where it is while the rest is repaired.
            choice: which backends take part, or the placement itself, if this graph can be placed so. A repair of a
                single backend's plan, or of a fixed one, is placed by cost.
            corrections: seconds by (node name, backend name) that measurements add to the costs. What was measured
                needs less margin.
        """
        fixed = None if choice.plan is None or exclusions or pinned else self._fixed(graph, choice.plan, choice.locked)
        if fixed is not None:
            return fixed
        backends = choice.allowed(self.backends)
        single = choice.single if choice.single in {backend.name for backend in backends} else ""
        costs = self.costs.of(graph)
        margin = CORRECTED_MARGIN if corrections else MIXTURE_MARGIN
        return self.costs.placements(graph, backends, exclusions, pinned).plan(
            costs,
            # What is pinned was chosen with the margin in view.
            margin=0.0 if pinned or choice.every else margin,
            single_backend=single if single and not pinned else None,
            corrections=corrections,
        )

    def _fixed(self, graph: OpGraph, plan: Plan, locked: bool) -> Plan | None:
        """A plan that was made before, without any search; ``None`` if it does not hold any more.

        Raises:
            LockError: it is locked, the lock is frozen, and something differs.
        """
        problems: tuple[str, ...] = ()
        found = None
        try:
            found = fixed_plan(graph, plan, self.backends, self.config.preferences())
        except MisfitError as error:
            problems = error.problems
        if locked and self.lock is not None:
            self.lock.settle(graph.id, problems)
        elif problems:
            detail = "placed by estimates: the plan that was measured does not hold: " + "; ".join(problems)
            self.events.append(Event("tuning", graph.id, "", "", detail))
        return found

    def with_refusals(self, graph: OpGraph, plan: Plan) -> Plan:
        """The plan with what every backend refuses, for whoever reads it."""
        return with_refusals(graph, plan, self.backends)

    def savings(self, graph: OpGraph, plan: Plan, exclusions: frozenset[tuple[str, str]]) -> tuple[Saving, ...]:
        """Which refusals cost most, in groups and then one by one; places the graph again for each promising one."""
        question = self._question(graph, plan, exclusions)
        groups = savings(question)
        return (*groups, *(item for item in single_savings(question, groups) if item not in groups))

    def ledger(self, graph: OpGraph, plan: Plan, exclusions: frozenset[tuple[str, str]], choice: Choice) -> Ledger:
        """What every alternative to a plan would cost; nothing is asked before somebody reads it."""
        fewer = choice.allowed(self.backends)
        return Ledger(self._question(graph, plan, exclusions), fewer if len(fewer) < len(self.backends) else ())

    def _question(self, graph: OpGraph, plan: Plan, exclusions: frozenset[tuple[str, str]]) -> Question:
        return Question(
            graph,
            self.backends,
            self.costs.of(graph),
            plan,
            preferences=self.config.preferences(),
            exclusions=exclusions,
            minimum_ops=dict(self.config.min_region),
        )

    def appraise(self, graph: OpGraph, plans: Sequence[Plan], bounded: bool = False) -> Appraisal:
        """What plans of a graph cost at its sizes; with ``bounded``, also what no plan can undercut."""
        return appraise(
            graph,
            plans,
            self.backends,
            self.costs.of(graph),
            preferences=self.config.preferences(),
            minimum_ops=dict(self.config.min_region),
            bounded=bounded,
        )

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Of the backends, by name."""
        return self._fingerprints

    def device(self, graph: OpGraph) -> str:
        """Name of the device that a graph works on, with the product: what was measured there holds there alone."""
        return device_name(graph.device_type)

    def op_seconds(self, graph: OpGraph, backend: str, node: str) -> float:
        """What a node's arithmetic and dispatch are estimated to take on a backend."""
        return self.costs.running(graph).op(backend, graph.view(node)).seconds

    def compile(self, backend: Backend, region: Region) -> Compiled:
        """Compile a region, or take what was compiled before; the reference compiles it when fuel is out.

        Raises:
            Exception: whatever the backend raises.
        """
        with self._lock:
            self._refuse_quarantined(backend, region)
            known = self._known.get((backend.name, region.key))
            if known is not None:
                return replace(known.compiled, reused_from=known.region_id)
            owner = backend if backend.traits().reference or self._fuel.take() else self.reference
        with nullcontext() if owner.traits().concurrent_compile else self._compiling:
            made = self._load(owner, region) or self._compile_and_keep(owner, region)
            made = self._with_stored_bindings(owner, region, made)
        compiled = Compiled(RegionCode(owner, made.region, self._confirmations(owner, region)), made.cached)
        with self._lock:
            # Who compiled it meanwhile, in another thread, was first.
            known = self._known.setdefault((backend.name, region.key), _Known(compiled, region.id))
        return compiled if known.compiled is compiled else replace(known.compiled, reused_from=known.region_id)

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

    def _share_cores(self, pools: Iterable[str]) -> None:
        """Keep the pools of these regions from fighting while this session lives."""
        done = sharing.use(self, pools, rested=True)
        if done.outcome != "alone":
            self.events.append(Event("threads", "", "", "", str(done)))

    def _compile(self, backend: Backend, region: Region) -> _Made:
        return _Made(backend.compile(region))

    def _compile_and_keep(self, backend: Backend, region: Region) -> _Made:
        compiled = self._compile(backend, region)
        if compiled.region.artifact is not None and not region.is_local:
            label = Label(backend.name, self._fingerprints[backend.name], _device_of(region))
            self.store.put(self._artifact_key(backend, region), compiled.region.artifact, label)
        return compiled

    def _with_stored_bindings(self, backend: Backend, region: Region, compiled: _Made) -> _Made:
        """Code for known values that takes long to make goes through the store as well."""
        prepare = compiled.region.prepare_binding
        if prepare is None or region.is_local:
            return compiled
        label = Label(backend.name, self._fingerprints[backend.name], _device_of(region))
        binder = StoredBinder(prepare, self.store, partial(self._artifact_key, backend, region), label)
        return replace(compiled, region=replace(compiled.region, bind=binder))

    def _load(self, backend: Backend, region: Region) -> _Made | None:
        """A region compiled by an earlier process; an artifact that its backend cannot use is thrown away."""
        if backend.traits().reference or region.is_local:
            return None
        key = self._artifact_key(backend, region)
        artifact = self.store.get(key)
        if artifact is None:
            return None
        try:
            return _Made(backend.load(region, artifact), cached=True)
        except FileNotFoundError:
            self.store.remove(key)
            return None
        except Exception as error:
            self.store.discard(key, f"backend {backend.name!r} cannot load it: {error}")
            return None

    def _artifact_key(self, backend: Backend, region: Region, values: str = "") -> str:
        """Of a region, or of the region with values inside that have this digest."""
        fingerprint, weights = self._fingerprints[backend.name], backend.traits().weights
        key = f"{region.key} with {values}" if values else region.key
        return artifact_key(key, backend.name, fingerprint, weights, _device_of(region))

    def _confirmations(self, backend: Backend, region: Region) -> Confirmations | None:
        if region.is_local:
            return None
        return Confirmations(lambda: self.database, region.key, backend.name, self._fingerprints[backend.name])

    def _refuse_quarantined(self, backend: Backend, region: Region) -> None:
        if backend.traits().reference:
            return
        key = (backend.name, region.key)
        if key not in self._quarantined and not region.is_local:
            self._quarantined[key] = self.database.quarantined(
                region.key, backend.name, self._fingerprints[backend.name]
            )
        reason = self._quarantined.get(key)
        if reason is not None:
            raise QuarantinedError(
                what=f"backend {backend.name!r} failed on this region before: {reason}",
                hint="it is tried again after its library changes, or with another cache folder (cache.dir)",
            )

    def quarantine(self, backend: Backend, region: Region, reason: str) -> None:
        """Remember that a backend failed on a region, until the backend's fingerprint changes."""
        with self._lock:
            self._known.pop((backend.name, region.key), None)
            if self._quarantined.get((backend.name, region.key)) is not None:
                return
            self._quarantined[backend.name, region.key] = reason
        if not region.is_local:
            self.database.quarantine(region.key, backend.name, self._fingerprints[backend.name], reason)


def _first_of_each(jobs: Sequence[tuple[Backend, Region]]) -> dict[tuple[str, str], tuple[Backend, Region]]:
    """The distinct jobs that may run beside others; none where there are no others."""
    distinct: dict[tuple[str, str], tuple[Backend, Region]] = {}
    for backend, region in jobs:
        distinct.setdefault((backend.name, region.key), (backend, region))
    beside = {key: job for key, job in distinct.items() if job[0].traits().concurrent_compile}
    return beside if len(distinct) > 1 else {}


def _device_of(region: Region) -> str:
    """Name of the device that a region works on, with the product."""
    return device_name(accelerator([item.meta for item in region.inputs] + [item.meta for item in region.outputs]))
