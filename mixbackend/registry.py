"""The backends of this process: found through entry points, or registered by hand.

Place: between the contract and everything that needs backends by name (configuration, pipeline, report, command line).
Input: entry points of group ``mixbackend.backends`` (each names a ``Backend`` subclass or a function without arguments
that returns a backend) and calls of ``register_backend``. Output: ``BackendInfo`` for people, ``Backend`` for machines.
Invariants: names are unique; a plug-in is imported only when it is needed, and one that cannot be used, or fails when
it is asked about itself (``contracts.asked``), is listed with its reason and never takes the others down; the fallback
is in every answer of ``resolve``.
Non-goals: judging, costs, choosing; order among backends only breaks ties.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from mixbackend.backends.common import forks
from mixbackend.contracts.asked import AskedBackend, ask, asked_availability
from mixbackend.contracts.backend import Availability, Backend, check_backend
from mixbackend.contracts.errors import BackendUnavailableError, ContractError, UnknownBackendError
from mixbackend.contracts.version import check_contract_version
from mixbackend.nearest_name import did_you_mean
from mixbackend.plug_in_source import source_digest

ENTRY_POINT_GROUP = "mixbackend.backends"
FALLBACK = "eager"
"""The backend that runs whatever no other takes; always resolved, last unless the user placed it."""

IN_PROCESS = "registered in this process"
OURS = "mixbackend"
"""The distribution of the backends that come along."""

logger = logging.getLogger("mixbackend")

Registered = TypeVar("Registered")


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What is known of one registered backend.

    Attributes:
        name: what configurations call it.
        available: whether it can be used here.
        reason: if not, why.
        version: of the library behind it, ``""`` if unknown.
        fingerprint: everything that changes what it would compile; ``""`` unless available.
        origin: distribution name and version, or ``registered in this process``.
        contract_version: the contract it was built for, ``""`` if it could not be loaded.
    """

    name: str
    available: bool
    reason: str = ""
    version: str = ""
    fingerprint: str = ""
    origin: str = IN_PROCESS
    contract_version: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data."""
        return {field: getattr(self, field) for field in self.__slots__}


@dataclass(frozen=True)
class Resolution:
    """Which backends may be used, and which not.

    Attributes:
        backends: in order of preference among equals, the fallback last unless the user placed it.
        skipped: those that cannot be used here, or failed when they were asked about themselves, with the reason.
        local: whether one of them was registered in this process: no other knows what it would answer.
    """

    backends: tuple[AskedBackend, ...]
    skipped: tuple[BackendInfo, ...]
    local: bool = False


class _Entry:
    """One registered name; loads its backend once, at first use. ``source`` is what was registered, for messages."""

    def __init__(self, name: str, origin: str, make: Callable[[], object], source: object) -> None:
        self.name = name
        self.origin = origin
        self.source = source
        self._make = make
        self._lock = forks.long_reentrant_lock()
        self._backend: Backend | None = None
        self._failure: str | None = None
        self._contract_version = ""
        self._complaints: set[str] = set()

    def load(self) -> Backend | None:
        """The backend, or ``None`` if it cannot be loaded; ``failure`` then says why."""
        with self._lock:
            if self._backend is None and self._failure is None:
                try:
                    self._backend = self._checked(self._make())
                except (Exception, SystemExit) as error:  # whatever a plug-in does on import must stay its own problem
                    self._failure = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                    logger.warning("backend %r from %s cannot be loaded: %s", self.name, self.origin, self._failure)
            return self._backend

    @property
    def failure(self) -> str:
        return self._failure or ""

    def _checked(self, made: object) -> Backend:
        candidate = made() if callable(made) and not isinstance(made, Backend) else made
        if isinstance(candidate, Backend):
            # Before the form: what a contract of another version asks of the form is not ours to judge.
            self._contract_version = str(candidate.contract_version)
            check_contract_version(self.name, candidate.contract_version)
        backend = check_backend(candidate)
        if backend.name != self.name:
            raise ContractError(
                what=f"the entry point is called {self.name!r}, but its backend calls itself {backend.name!r}",
                where=self.origin,
                hint="give the entry point the backend's name",
            )
        return backend

    def _complain(self, reason: str) -> None:
        """Log a fault of the plug-in, once: it is there, so the user expects it to be used."""
        with self._lock:
            if reason in self._complaints:
                return
            self._complaints.add(reason)
        logger.warning("%s from %s is left out: %s", self.name, self.origin, reason)

    def availability(self) -> Availability:
        backend = self.load()
        if backend is None:
            return Availability(False, self.failure)
        answer = asked_availability(backend)
        if not answer.available and not answer.reason:
            return Availability(False, "it gave no reason", answer.version)
        return answer

    def ask(self) -> tuple[AskedBackend | None, BackendInfo]:
        """The backend with its answers about itself, ``None`` if it cannot be used here, and what there is to know."""
        availability = self.availability()
        available, reason, asked = availability.available, availability.reason, None
        if available and self._backend is not None:
            try:
                asked = ask(self._backend, availability, source=source_digest(self._backend))
            except ContractError as error:
                available, reason = False, error.what
                self._complain(reason)
        info = BackendInfo(
            name=self.name,
            available=available,
            reason="" if available else reason,
            version=availability.version,
            fingerprint="" if asked is None else asked.fingerprint(),
            origin=self.origin,
            contract_version=self._contract_version,
        )
        return asked, info


class Registry:
    """A set of backends by name. One is current; see the functions of this module.

    Args:
        discover: whether entry points are looked up, once, at the first question.
    """

    def __init__(self, discover: bool = True) -> None:
        self._lock = forks.reentrant_lock()
        self._entries: dict[str, _Entry] = {}
        self._discovery_pending = discover

    def register(self, registered: object) -> None:
        """See ``register_backend``."""
        backend = registered() if inspect.isclass(registered) else registered
        if isinstance(backend, Backend):
            check_contract_version(str(getattr(backend, "name", type(backend).__qualname__)), backend.contract_version)
        backend = check_backend(backend)
        with self._lock:
            self._discover()
            existing = self._entries.get(backend.name)
            if existing is None:
                self._entries[backend.name] = _Entry(backend.name, IN_PROCESS, lambda: backend, registered)
            elif existing.source is not registered and existing.source != registered:
                raise _taken(existing, f"{type(backend).__module__}.{type(backend).__qualname__} ({IN_PROCESS})")

    def names(self) -> tuple[str, ...]:
        """Every registered name: alphabetical, the fallback last."""
        with self._lock:
            self._discover()
            return tuple(sorted(self._entries, key=lambda name: (name == FALLBACK, name)))

    def infos(self) -> tuple[BackendInfo, ...]:
        """See ``backends``."""
        return tuple(self._entry(name).ask()[1] for name in self.names())

    def get(self, name: str) -> Backend:
        """See ``get``."""
        entry = self._entry(name)
        backend = entry.load()
        if backend is None:
            raise BackendUnavailableError(
                what=f"backend {name!r} cannot be loaded: {entry.failure}",
                where=entry.origin,
                hint="repair or uninstall the plug-in; `mixbackend backends` lists what can be used",
            )
        return backend

    def asked(self, name: str) -> tuple[AskedBackend | None, BackendInfo]:
        """See ``asked``."""
        return self._entry(name).ask()

    def resolve(self, names: Sequence[str] | None, required: Collection[str]) -> Resolution:
        """See ``resolution``."""
        wanted = self._wanted(names)
        for name in required:
            self._entry(name)
        found: list[AskedBackend] = []
        skipped: list[BackendInfo] = []
        local = False
        for name in wanted:
            entry = self._entry(name)
            backend, info = entry.ask()
            if backend is not None:
                found.append(backend)
                local = local or info.origin == IN_PROCESS
                continue
            skipped.append(info)
            if name in required or name == FALLBACK:
                why = "no other takes what is left" if name == FALLBACK else "a rule of the configuration requires it"
                raise BackendUnavailableError(
                    what=f"backend {name!r} is needed ({why}) but cannot be used here: {info.reason}",
                    where=entry.origin,
                    hint="make it usable, or take the requirement out of the configuration",
                )
            level = logging.DEBUG if names is None else logging.WARNING
            logger.log(level, "backend %r is left out: %s", name, info.reason)
        return Resolution(tuple(found), tuple(skipped), local)

    def skipped(self, names: Sequence[str] | None) -> tuple[BackendInfo, ...]:
        """See ``skipped``."""
        infos = (self._entry(name).ask()[1] for name in self._wanted(names))
        return tuple(info for info in infos if not info.available)

    def _wanted(self, names: Sequence[str] | None) -> tuple[str, ...]:
        wanted = dict.fromkeys(self.names() if names is None else names)
        wanted.setdefault(FALLBACK)
        return tuple(wanted)

    def _entry(self, name: str) -> _Entry:
        with self._lock:
            self._discover()
            entry = self._entries.get(name)
        if entry is None:
            raise UnknownBackendError(
                what=f"no backend is called {name!r}",
                hint=f"{did_you_mean(name, self.names())} `mixbackend backends` lists them all",
            )
        return entry

    def _discover(self) -> None:
        if not self._discovery_pending:
            return
        found: dict[str, _Entry] = {}
        for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)):
            entry = _Entry(point.name, _origin(point), point.load, point.value)
            if point.name in found:
                raise _taken(found[point.name], _describe(entry))
            found[point.name] = entry
        self._entries.update(found)
        self._discovery_pending = False


def _describe(entry: _Entry) -> str:
    source = entry.source
    if isinstance(source, str):
        return f"{source} ({entry.origin})"
    kind = source if inspect.isclass(source) else type(source)
    return f"{kind.__module__}.{kind.__qualname__} ({entry.origin})"


def _taken(existing: _Entry, newcomer: str) -> ContractError:
    return ContractError(
        what=f"two backends are called {existing.name!r}: {_describe(existing)} and {newcomer}",
        hint="rename one of them, or uninstall the package that brings it",
    )


def _origin(point: EntryPoint) -> str:
    return "unknown distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"


_current = Registry()


def register_backend(backend: Registered) -> Registered:
    """Register a backend for this process; also a class decorator. Returns what it was given.

    Args:
        backend: an instance, or a subclass of ``Backend`` that can be made without arguments. Registering one instance
            twice, or one that equals it, is no error.

    Raises:
        ContractError: it has not the form of a backend, or its name is taken; names both.
        ContractVersionError: it was built for an incompatible contract.
    """
    _current.register(backend)
    return backend


def backends() -> tuple[BackendInfo, ...]:
    """Every registered backend, available or why not; alphabetical, the fallback last. Loads all plug-ins."""
    return _current.infos()


def names() -> tuple[str, ...]:
    """Names of all registered backends, without loading any."""
    return _current.names()


def get(name: str) -> Backend:
    """One backend by name, whether or not it is available.

    Raises:
        UnknownBackendError: no backend has this name; suggests the nearest.
        BackendUnavailableError: its plug-in cannot be loaded.
    """
    return _current.get(name)


def resolve(names: Sequence[str] | None = None, required: Collection[str] = ()) -> tuple[AskedBackend, ...]:
    """The backends that may be used, in order of preference among equals; see ``resolution``."""
    return resolution(names, required).backends


def resolution(names: Sequence[str] | None = None, required: Collection[str] = ()) -> Resolution:
    """The backends that may be used, each asked about itself now and once, and those that are left out.

    Args:
        names: the user's list, in that order; ``None`` for all, alphabetically. The fallback is added last if missing.
        required: names that must be usable (a rule requires them).

    Raises:
        UnknownBackendError: a name is not registered.
        BackendUnavailableError: a required backend, or the fallback, cannot be used here. Others are left out and
            logged.
    """
    return _current.resolve(names, required)


def asked(name: str) -> tuple[AskedBackend | None, BackendInfo]:
    """One backend with its answers about itself, ``None`` if it cannot be used here, and what there is to know of it.

    Raises:
        UnknownBackendError: no backend has this name; suggests the nearest.
    """
    return _current.asked(name)


def skipped(names: Sequence[str] | None = None) -> tuple[BackendInfo, ...]:
    """Those that ``resolve`` leaves out because they cannot be used here, with the reason."""
    return _current.skipped(names)


@contextmanager
def isolated_registry(*registered: object, discover: bool = False) -> Iterator[Registry]:
    """A registry of its own for a test: only these backends (and entry points, if asked); the old one comes back.

    It replaces the registry of the whole process, all threads included.
    """
    global _current
    previous = _current
    registry = Registry(discover=discover)
    for backend in registered:
        registry.register(backend)
    _current = registry
    try:
        yield registry
    finally:
        _current = previous
