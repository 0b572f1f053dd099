"""Our caches in ``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts``.

Place: beside ``mixture``, which says when a graph of an environment was compiled. Input: what configurations keep on
disk. Output: an archive of a cache (``storage.archive``) of what this process read or wrote of it; where it is loaded,
rows and artifacts in the cache of the same configuration.
Invariants: an archive is made when torch saves, and holds all that was used until then: of several saved by one
process, torch loads the last. Loading is as trusted as torch makes it, which unpickles what it is given: native code
is taken. Nothing raises into torch, which would save or load nothing at all.
Non-goals: graphs that AOTAutograd traced, which torch's own cache holds and carries.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping

from mixbackend.backends.common import forks
from mixbackend.configuration import CacheConfig
from mixbackend.contracts.torch_compat import add_to_saved_caches, know_saved_caches
from mixbackend.host.devices import devices_here
from mixbackend.host.version import VERSION
from mixbackend.plan.environment import Environment
from mixbackend.storage import ArtifactStore, Database, StorageEvent, ThisMachine, log_event, private_folder

_KIND = "mixbackend"
_KEY = re.compile(r"(?P<folder>.*?)(?: of (?P<max_gb>[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) GB)? #[0-9]+", re.DOTALL)
"""A key: the configured folder, its bound (``cache.max_gb``) where it is told, and a number."""
_USUAL_GB = CacheConfig().max_gb

_log = logging.getLogger(__name__)
_of_process = forks.lock()
_caches: dict[str | None, _UsedCache] = {}


def take_part_in_saved_caches() -> None:
    """Let torch load what it saved of our caches."""
    know_saved_caches(_KIND, _take)


def offer_to_save(environment: Environment) -> None:
    """A graph of an environment was compiled: what it used of its cache is saved the next time that torch saves."""
    kept = environment.config.cache
    with _of_process:
        cache = _caches.setdefault(kept.dir, _UsedCache(kept.dir))
    cache.offer(environment.storage.used, environment.fingerprints, kept.max_gb)


class _UsedCache:
    """What this process used of a cache folder.

    Args:
        folder: the configured one, ``None`` for the user's.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._lock = forks.lock()
        self._used: dict[int, set[str]] = {}
        self._fingerprints: dict[str, str] = {}
        self._number = 0
        self._waits = False

    def offer(self, used: set[str], fingerprints: Mapping[str, str], max_gb: float) -> None:
        """Have it saved.

        Args:
            used: keys of artifacts that were read or written; more come later.
            fingerprints: of the backends, by name.
            max_gb: bound of the artifacts, of the process that saves and of those that load.
        """
        with self._lock:
            self._used[id(used)] = used
            self._fingerprints.update(fingerprints)
            if self._waits:
                return
            self._waits = True
            self._number += 1
            key = f"{self._folder or ''} of {max_gb:g} GB #{self._number}"
        take_part_in_saved_caches()
        add_to_saved_caches(_KIND, key, self._archive)

    def _archive(self) -> bytes:
        """Of all rows, and of the artifacts that were used."""
        # Most processes neither save nor load: they do not load what it takes.
        from mixbackend.storage.archive import write_archive

        with self._lock:
            self._waits = False
            keys = frozenset().union(*map(frozenset, self._used.values()))
        file = io.BytesIO()
        try:
            database, store = _opened(self._folder)
            machine = ThisMachine(self._fingerprints, devices_here(), complete=False)
            write_archive(file, database, store, machine, {"mixbackend": VERSION}, wanted=keys)
        except Exception as error:
            _log.warning("the cache in %s is not saved: %s", self._folder or "the user's folder", error)
            return b""
        return file.getvalue()


def _opened(named: str | None, max_gb: float = _USUAL_GB) -> tuple[Database, ArtifactStore]:
    """Of a folder, apart from what an environment has open there: a program that loads may have emptied it since.

    Args:
        named: the configured folder, ``None`` for the user's.
        max_gb: see ``ArtifactStore``.
    """
    folder = private_folder(named, _leave_to_environments)
    return Database.open(folder), ArtifactStore.open(folder, max_gb=max_gb)


def _leave_to_environments(event: StorageEvent) -> None:
    """Log an event, but not that another folder replaces the usual one: environments that compile with it tell that."""
    if event.kind != "temporary":
        log_event(event)


def _take(key: str, content: bytes) -> None:
    """Take what fits of an archive into the cache that its key names."""
    from mixbackend.storage.archive import read_archive

    parts = _KEY.fullmatch(key)
    named = (parts["folder"] if parts is not None else "") or None
    max_gb = float((parts and parts["max_gb"]) or _USUAL_GB)
    try:
        database, store = _opened(named, max_gb)
        # Which backends there are is not asked for here: keys hold their fingerprints.
        machine = ThisMachine({}, devices_here(), complete=False)
        brought = read_archive(io.BytesIO(content), database, store, machine)
    except Exception as error:
        _log.warning("the saved cache of %s is not loaded: %s", named or "the user's folder", error)
        return
    if brought.refused:
        first = brought.refused[0]
        _log.warning("%d entries of a saved cache do not fit here; %s %s", len(brought.refused), first.what, first.why)
