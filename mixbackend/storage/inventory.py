"""What lies in a cache folder: for ``mixbackend cache info``.

Place: above store and database. Input: both, and what is true of this machine. Output: an ``Inventory``.
Invariants: only looks; sizes are in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mixbackend.backends.common.private_folder import usual_cache_folder
from mixbackend.storage.artifacts import ArtifactStore
from mixbackend.storage.database import Database
from mixbackend.storage.eviction import DATABASE_BYTES, left_by_races
from mixbackend.storage.tables import TABLES
from mixbackend.storage.validity import ThisMachine

NATIVE_CODE = "codegen-cpp"
"""Folder of the code generator's shared objects, in the user's cache."""
_BESIDE = (("native code", NATIVE_CODE), ("weights", "weights"), ("what inductor handles", "inductor-handling"))


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Artifacts of one backend, ``""`` for those that do not say."""

    backend: str
    count: int
    bytes: int
    stale: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table: all, those that can never be asked for again, and those about devices of other machines."""

    table: str
    count: int
    stale: int
    elsewhere: int


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A backend that may not have a region; ``expired`` if it may again."""

    backend: str
    region: str
    reason: str
    since: float
    expired: str


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder beside the artifacts."""

    what: str
    path: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Inventory:
    """See the module's docstring.

    Attributes:
        folder: of the cache.
        artifacts: by backend.
        artifact_limit: size above which the least recently used go.
        database, database_bytes, database_limit: its file.
        set_aside: databases that were damaged or foreign.
        rows: by table.
        quarantines: oldest first.
        folders: native code and the like; left by killed races.
        remote: what the fleet shares, ``None`` without.
        devices, fingerprints: what counts as here and now.
    """

    folder: str
    artifacts: Sequence[Artifacts]
    artifact_limit: float
    database: str
    database_bytes: int
    database_limit: float
    set_aside: Sequence[str]
    rows: Sequence[Rows]
    quarantines: Sequence[Quarantined]
    folders: Sequence[Folder]
    remote: str | None
    devices: Sequence[str]
    fingerprints: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def take_stock(
    folder: Path, database: Database, store: ArtifactStore, machine: ThisMachine, limit: float, remote: str | None
) -> Inventory:
    """Look at everything.

    Args:
        folder: of the cache.
        database, store: in it.
        machine: this machine, all of its backends named.
        limit, remote: of the configuration.
    """
    races = [_folder("left by a race", path) for path in left_by_races(folder)]
    return Inventory(
        folder=str(folder),
        artifacts=_artifacts(store, machine),
        artifact_limit=limit,
        database=str(database.path),
        database_bytes=database.used_bytes(),
        database_limit=DATABASE_BYTES,
        set_aside=[str(path) for path in database.set_aside()],
        rows=_rows(database, machine),
        quarantines=[
            Quarantined(row["backend"], row["region"], row["reason"], row["since"], machine.stale("quarantine", row))
            for row in database.rows("quarantine")
        ],
        folders=[*(_folder(what, usual_cache_folder() / name) for what, name in _BESIDE), *races],
        remote=remote,
        devices=machine.devices,
        fingerprints=dict(machine.fingerprints),
    )


def _artifacts(store: ArtifactStore, machine: ThisMachine) -> list[Artifacts]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    stale: Counter[str] = Counter()
    for artifact in store.artifacts():
        counts[artifact.label.backend] += 1
        sizes[artifact.label.backend] += artifact.size
        stale[artifact.label.backend] += bool(machine.stale_label(artifact.label))
    return [Artifacts(name, counts[name], sizes[name], stale[name]) for name in sorted(counts)]


def _rows(database: Database, machine: ThisMachine) -> list[Rows]:
    found = []
    for table in TABLES.values():
        rows = database.rows(table.name)
        stale = sum(bool(machine.stale(table.name, row)) for row in rows)
        elsewhere = sum(bool(machine.other_device(table.name, row)) for row in rows)
        found.append(Rows(table.name, len(rows), stale, elsewhere))
    return found


def _folder(what: str, path: Path) -> Folder:
    sizes = [file.lstat().st_size for file in path.rglob("*") if file.is_file()]
    return Folder(what, str(path), len(sizes), sum(sizes))
