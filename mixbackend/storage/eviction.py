"""Eviction: the cache folder stays in bounds, and is cleared.

Place: above store and database; asked once per environment, and by ``mixbackend cache``.
Input: a database, what is true of this machine. Output: fewer rows and files, and how many.
Rows of former fingerprints stay as long as there is room (another environment may share the folder); then they go
first, and the oldest after them.
Invariants: nothing goes that was written again in the meantime; what a killed race left goes only while no race runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from mixbackend.storage.artifacts import ArtifactStore
from mixbackend.storage.database import FILE, Database
from mixbackend.storage.tables import TABLES, Row, TableName
from mixbackend.storage.validity import ThisMachine

DATABASE_BYTES = 100_000_000
"""Size above which the database loses rows."""
TUNING_LOCK = "tuning"
"""Purpose of the database's lock that a race holds; see ``Database.alone``."""
TUNING_PREFIX = "tuning-"
"""What the folders of races are called."""
_SHRINK_TO = 0.8
_PIECE = 50


def evict(database: Database, machine: Callable[[], ThisMachine]) -> None:
    """What is done once when a database is opened: the database stays in bounds, and killed races leave nothing.

    Args:
        database: that was opened.
        machine: what is true of this machine; asked only where rows have to go.
    """
    sweep_races(database)
    if database.used_bytes() > DATABASE_BYTES:
        keep_in_bounds(database, machine(), DATABASE_BYTES)


def keep_in_bounds(database: Database, machine: ThisMachine, most_bytes: float) -> int:
    """Remove rows of a database that has grown too large; how many.

    Args:
        database: looked at; nothing happens while it is small.
        machine: which rows go first.
        most_bytes: size that is too large.
    """
    if database.used_bytes() <= most_bytes:
        return 0
    removed = 0
    with database.alone("upkeep"):
        order = _in_order(database, machine)
        while database.used_bytes() > most_bytes * _SHRINK_TO:
            piece = [item for _, item in zip(range(_PIECE), order, strict=False)]
            if not piece:
                break
            removed += sum(database.remove(name, row) for name, row in piece)
        database.shrink()
    return removed


def clear(
    database: Database,
    store: ArtifactStore,
    machine: ThisMachine,
    kinds: Collection[str],
    stale_only: bool,
    dry_run: bool,
) -> Counter[str]:
    """Remove what was learned and compiled; how many of each kind.

    Args:
        database, store: of the cache.
        machine: what is out of date; asked only with ``stale_only``.
        kinds: of ``KINDS``.
        stale_only: leave what can still be asked for.
        dry_run: only count.
    """
    gone: Counter[str] = Counter()
    for name, table in TABLES.items():
        if name not in kinds:
            continue
        for row in database.rows(table.name):
            if not stale_only or machine.stale(name, row):
                gone[name] += dry_run or database.remove(table.name, row)
    if "artifacts" in kinds:
        for artifact in list(store.artifacts()):
            if not stale_only or machine.stale_label(artifact.label):
                gone["artifacts"] += dry_run or store.remove(artifact.key)
    if "left over" in kinds:
        gone["left over"] += _clear_left_over(database, [] if stale_only else _former(database), dry_run)
    if not dry_run:
        database.shrink()
    return gone


KINDS = (*TABLES, "artifacts", "left over")
"""What ``clear`` can remove; ``left over`` are folders of killed races, databases that were set aside, and those of
former versions."""


def _former(database: Database) -> list[Path]:
    """Databases of former versions, which an older environment may still use."""
    folder = database.path.parent if database.path is not None else None
    found = [] if folder is None else sorted(folder.glob("mixbackend-v*.sqlite"))
    return [path for path in found if path.name != FILE]


def _clear_left_over(database: Database, former: list[Path], dry_run: bool) -> int:
    files = [*database.set_aside(), *former]
    races = left_by_races(database.path.parent) if database.path is not None else []
    if dry_run:
        return len(files) + len(races)
    for path in files:
        for companion in ("", "-wal", "-shm"):
            Path(f"{path}{companion}").unlink(missing_ok=True)
    return len(files) + len(sweep_races(database))


def clear_folder(folder: Path, dry_run: bool) -> int:
    """Remove the files of a folder of native code; how many. What is loaded stays so; what is needed is built again."""
    files = [path for path in folder.glob("*") if path.is_file() or path.is_symlink()]
    for path in () if dry_run else files:
        path.unlink(missing_ok=True)
    return len(files)


def _in_order(database: Database, machine: ThisMachine) -> Iterator[tuple[TableName, Row]]:
    """All rows: those that can never be asked for again, then the oldest of all tables first."""
    rows = [(table.name, row) for table in TABLES.values() for row in database.rows(table.name)]
    yield from sorted(rows, key=lambda item: (not machine.stale(*item), item[1][TABLES[item[0]].time]))


def left_by_races(folder: Path) -> list[Path]:
    """Folders of races, running or killed: the values of a model lie in them."""
    return sorted(path for path in folder.glob(f"{TUNING_PREFIX}*") if path.is_dir() and not path.is_symlink())


def sweep_races(database: Database) -> list[Path]:
    """Remove what killed races left, unless one runs now; what was removed."""
    if database.path is None or not left_by_races(database.path.parent):
        return []
    with _without_waiting(Path(f"{database.path}.{TUNING_LOCK}.lock")) as alone:
        found = left_by_races(database.path.parent) if alone else []
        for folder in found:
            shutil.rmtree(folder, ignore_errors=True)
    return found


@contextlib.contextmanager
def _without_waiting(path: Path) -> Iterator[bool]:
    """Hold a file lock if it is free; whether it was."""
    if os.name != "posix":
        yield False
        return
    import fcntl

    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "a"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            # Another process holds it, or there can be none.
            free = False
        yield free
