"""Our caches in ``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts``.

Place: beside ``mixture``, which says when a graph of an environment was compiled. Input: what configurations keep on
disk. Output: an archive of a cache (``storage.archive``) of what this process read or wrote of it; where it is loaded,
rows and artifacts in the cache of the same configuration.
Invariants: an archive is made when somebody saves, and holds all that was used until then: of several saved by one
process, torch loads the last. Loading is as trusted as torch makes it, which unpickles what it is given: native code is
taken. Nothing raises into torch, which would save or load nothing at all.
Non-goals: graphs that AOTAutograd traced, which torch's own cache holds and carries.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping

from mixbackend.backends.common import forks
from mixbackend.contracts.torch_compat import add_to_saved_caches, know_saved_caches
from mixbackend.host.devices import devices_here
from mixbackend.host.version import VERSION
from mixbackend.plan.environment import Environment
from mixbackend.storage import ArtifactStore, Database, ThisMachine, private_folder

_KIND = "mixbackend"
_NUMBER = " #"
"""Between a folder and a number in a key."""

_log = logging.getLogger(__name__)
_of_process = forks.lock()
_caches: dict[str | None, _UsedCache] = {}


def take_part_in_saved_caches() -> None:
    """Let torch load what it saved of our caches."""
    know_saved_caches(_KIND, _take)


def offer_to_save(environment: Environment) -> None:
    """A graph of an environment was compiled: what it used of its cache is saved the next time that somebody saves."""
    folder = environment.config.cache.dir
    with _of_process:
        cache = _caches.setdefault(folder, _UsedCache(folder))
    cache.offer(environment.storage.used, environment.fingerprints)


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

    def offer(self, used: set[str], fingerprints: Mapping[str, str]) -> None:
        """Have it saved.

        Args:
            used: keys of artifacts that were read or written; more come later.
            fingerprints: of the backends, by name.
        """
        with self._lock:
            self._used[id(used)] = used
            self._fingerprints.update(fingerprints)
            if self._waits:
                return
            self._waits = True
            self._number += 1
            key = f"{self._folder or ''}{_NUMBER}{self._number}"
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
            folder = private_folder(self._folder)
            database, store = Database.open(folder), ArtifactStore.open(folder)
            machine = ThisMachine(self._fingerprints, devices_here(), complete=False)
            write_archive(file, database, store, machine, {"mixbackend": VERSION}, wanted=keys)
        except Exception as error:
            _log.warning("the cache in %s is not saved: %s", self._folder or "the user's folder", error)
            return b""
        return file.getvalue()


def _take(key: str, content: bytes) -> None:
    """Take what fits of an archive into the cache that its key names."""
    from mixbackend.storage.archive import read_archive

    named = key.rpartition(_NUMBER)[0] or None
    try:
        folder = private_folder(named)
        # Which backends there are is not asked for here: keys hold their fingerprints.
        machine = ThisMachine({}, devices_here(), complete=False)
        brought = read_archive(io.BytesIO(content), Database.open(folder), ArtifactStore.open(folder), machine)
    except Exception as error:
        _log.warning("the saved cache of %s is not loaded: %s", named or "the user's folder", error)
        return
    if brought.refused:
        first = brought.refused[0]
        _log.warning("%d entries of a saved cache do not fit here; %s %s", len(brought.refused), first.what, first.why)
