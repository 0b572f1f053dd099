"""Keeping the cache folder in bounds, and clearing it.

Place: above store and database; asked once per session, and by ``mixbackend cache``.
Input: a database, what is true of this machine. Output: fewer rows and files, and how many.
Rows of former fingerprints stay as long as there is room (another environment may share the folder); then they go
first, and the oldest after them.
Invariants: nothing goes that was written again in the meantime; what a killed race left goes only while no race runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from mixbackend.storage.database import Database
from mixbackend.storage.here import Here
from mixbackend.storage.tables import TABLES, Row, TableName

DATABASE_BYTES = 100_000_000
"""Size above which the database loses rows."""
TUNING_LOCK = "tuning"
"""Purpose of the database's lock that a race holds; see ``Database.alone``."""
TUNING_PREFIX = "tuning-"
"""What the folders of races are called."""
_SHRINK_TO = 0.8
_PIECE = 200


def tidy(database: Database, here: Callable[[], Here]) -> None:
    """What a session does once: the database stays in bounds, and killed races leave nothing.

    Args:
        database: of the session.
        here: what is true of this machine; asked only where rows have to go.
    """
    sweep_races(database)
    if database.used_bytes() > DATABASE_BYTES:
        keep_in_bounds(database, here())


def keep_in_bounds(database: Database, here: Here, most_bytes: float = DATABASE_BYTES) -> int:
    """Remove rows of a database that has grown too large; how many.

    Args:
        database: looked at; nothing happens while it is small.
        here: which rows go first.
        most_bytes: size that is too large.
    """
    if database.used_bytes() <= most_bytes:
        return 0
    removed = 0
    with database.alone("upkeep"):
        order = _in_order(database, here)
        while database.used_bytes() > most_bytes * _SHRINK_TO:
            piece = [item for _, item in zip(range(_PIECE), order, strict=False)]
            if not piece:
                break
            removed += sum(database.remove(name, row) for name, row in piece)
        database.shrink()
    return removed


def _in_order(database: Database, here: Here) -> Iterator[tuple[TableName, Row]]:
    """All rows: those that can never be asked for again, then the oldest of all tables first."""
    rows = [(table.name, row) for table in TABLES.values() for row in database.rows(table.name)]
    yield from sorted(rows, key=lambda item: (not here.stale(*item), item[1][TABLES[item[0]].time]))


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
    """Hold a file lock if nobody else does; whether we do."""
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
            # Somebody holds it, or there can be none.
            free = False
        yield free
