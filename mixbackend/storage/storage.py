"""What one configuration keeps on disk, opened when it is first asked for.

Place: made with the environment; asked for rows and artifacts.
Input: the folder, the fleet's address, the bound, and the fingerprints of the backends. Output: a database, a store.
Invariants: nothing is created or read before the first question; the folder is found, and told of, once, and tidied
once, with the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from mixbackend.backends.common.private_folder import usual_cache_folder
from mixbackend.host.devices import devices_here
from mixbackend.storage.artifacts import ArtifactStore
from mixbackend.storage.database import FILE, Database
from mixbackend.storage.events import Report, log_event
from mixbackend.storage.eviction import evict
from mixbackend.storage.folder import private_folder
from mixbackend.storage.validity import ThisMachine


def remembers(folder: str | None) -> bool:
    """Whether an earlier process left a database here; creates nothing.

    Args:
        folder: as of ``Storage``.
    """
    return (Path(folder) if folder else usual_cache_folder()).joinpath(FILE).exists()


class Storage:
    """See the module's docstring.

    Args:
        folder: local, ``None`` for the user's cache folder.
        remote: fsspec URL of what a fleet shares, ``None`` for nothing.
        max_gb: size above which the artifacts lose their least recently used entries.
        fingerprints: of the backends, by name.
        report: told of every entry that was removed, unreadable or not written.
        only_reads: whether the database is only read.

    Attributes:
        used: keys of the artifacts that were read or written; grows.
    """

    def __init__(
        self,
        folder: str | None,
        remote: str | None,
        max_gb: float,
        fingerprints: Mapping[str, str],
        report: Report = log_event,
        only_reads: bool = False,
    ) -> None:
        self._folder = folder
        self._remote = remote
        self._max_gb = max_gb
        self._fingerprints = fingerprints
        self._report = report
        self._only_reads = only_reads
        self.used: set[str] = set()

    @cached_property
    def folder(self) -> Path:
        """Where it lies; of this process alone where the configuration names none and the usual one is not ours."""
        return private_folder(self._folder, self._report)

    @cached_property
    def database(self) -> Database:
        """Rates, decisions, quarantines of this machine, and what its fleet shares."""
        database = Database.open(self.folder, remote=self._remote, report=self._report, only_reads=self._only_reads)
        if self._only_reads:
            return database
        evict(database, lambda: ThisMachine(self._fingerprints, devices_here(), complete=False))
        return database

    @cached_property
    def store(self) -> ArtifactStore:
        """Compiled regions."""
        return ArtifactStore.open(
            self.folder, remote=self._remote, max_gb=self._max_gb, report=self._report, used=self.used
        )

    @property
    def builder_lock(self) -> Path:
        """The file that the one process holds which builds for this folder behind the user's calls."""
        return self.folder / "builder.lock"
