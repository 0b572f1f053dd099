"""One SQLite file that many threads and processes share, and that heals.

Place: below ``database``; knows nothing of what the tables mean.
Invariants: each thread has its own connection, never used across a fork; reads of a file that cannot be read give no
rows and writes are lost, with a report; a file that is no database of ours is renamed, under a lock, and begun anew.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mixbackend.backends.common import forks
from mixbackend.storage.events import Report, StorageEvent

BUSY_TIMEOUT_S = 10.0
"""So long a statement waits for another process's lock; then it is lost, with a report."""
_APPLICATION = 0x4D495842
_COMPANIONS = ("", "-wal", "-shm")
_KEPT_ASIDE = 3


class _NotOursError(Exception):
    """The file is damaged, newer, or of another program."""


class SqliteFile:
    """See the module's docstring.

    Args:
        path: of the file, ``None`` for one in memory.
        tables: columns and keys by table name.
        version: of the schema; files of a higher version are set aside.
        report, clock, only_reads: as in ``Database``.
        later: tables that came to the schema since: files of its version that lack them get them.
    """

    def __init__(
        self,
        path: Path | None,
        tables: Mapping[str, str],
        version: int,
        report: Report,
        clock: Callable[[], float],
        only_reads: bool = False,
        later: Collection[str] = (),
    ) -> None:
        self._path = path
        self._tables = tables
        self._later = frozenset(later)
        self._version = version
        self._report = report
        self._clock = clock
        self._only_reads = only_reads
        self._local = threading.local()
        self._abandoned: list[sqlite3.Connection] = []
        self._memory_lock = forks.reentrant_lock()
        self._memory = self._connect(":memory:") if path is None else None

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query; none if the file cannot be read."""
        return self._run("unreadable", statement, values, lambda cursor: cursor.fetchall()) or []

    def write(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run one statement that changes the file, atomically; how many rows it changed."""
        if self._only_reads:
            return 0
        return self._run("unwritable", statement, values, lambda cursor: max(0, cursor.rowcount)) or 0

    def used_bytes(self) -> int:
        """Size of what the file holds, without pages that are free."""
        counts = [self.read(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")]
        pages, free, size = (rows[0][0] if rows else 0 for rows in counts)
        return (pages - free) * size

    def shrink(self) -> None:
        """Give pages that are free back to the file system."""
        self.write("VACUUM")
        self.read("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def path(self) -> Path | None:
        """Of the file."""
        return self._path

    def close(self) -> None:
        """Close this thread's connection."""
        connection = self._of_this_process()
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _run(self, trouble: str, statement: str, values: Sequence[Any], answer: Callable[[sqlite3.Cursor], Any]) -> Any:
        for attempt in (1, 2):
            try:
                with self._connection() as connection:
                    return answer(connection.execute(statement, tuple(values)))
            except (sqlite3.DatabaseError, _NotOursError, OSError) as error:
                if attempt == 2 or not _may_be_damage(error) or not self._heal():
                    self._report(StorageEvent(trouble, f"database {self._path}: {error}"))  # type: ignore[arg-type]
                    break
        return None

    # --- connections -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if self._memory is not None:
            with self._memory_lock:
                yield self._memory
            return
        connection = self._of_this_process()
        if connection is None:
            connection = self._connect(str(self._path))
            self._local.connection = (os.getpid(), connection)
        yield connection

    def _of_this_process(self) -> sqlite3.Connection | None:
        held = getattr(self._local, "connection", None)
        if held is None:
            return None
        process, connection = held
        if process == os.getpid():
            return connection
        # After a fork the parent's connection may be neither used nor closed here: it is kept, untouched.
        self._abandoned.append(connection)
        self._local.connection = None
        return None

    def _connect(self, target: str) -> sqlite3.Connection:
        if target != ":memory:":
            # Created for this user alone; SQLite would follow the umask.
            os.close(os.open(target, os.O_RDWR | os.O_CREAT, 0o600))
        connection = self._raw(target)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _raw(self, target: str) -> sqlite3.Connection:
        return sqlite3.connect(target, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._is_new(connection):
            # Changing to WAL and creating tables fail if two processes do it at once.
            with self.exclusive():
                if self._is_new(connection):
                    self._create(connection)
        elif self._lacking(connection):
            with self.exclusive(), _transaction(connection, "IMMEDIATE"):
                self._create_tables(connection, self._lacking(connection))
        connection.execute("PRAGMA synchronous=NORMAL")

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        """Whether the file is still empty.

        Raises:
            _NotOursError: it holds something that this version did not make.
        """
        with _transaction(connection, "DEFERRED"):
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            tables = _tables(connection)
        if not tables and version == application == 0:
            return True
        if version != self._version or application != _APPLICATION:
            raise _NotOursError(f"is version {version} of application {application:#x}")
        if not tables | self._later >= set(self._tables):
            raise _NotOursError(f"lacks tables {sorted(set(self._tables) - tables)}")
        return False

    def _lacking(self, connection: sqlite3.Connection) -> list[str]:
        return sorted(self._tables.keys() - _tables(connection))

    def _create_tables(self, connection: sqlite3.Connection, names: Iterable[str]) -> None:
        for name in names:
            connection.execute(f"CREATE TABLE {name} ({self._tables[name]}) WITHOUT ROWID")

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        with _transaction(connection, "IMMEDIATE"):
            self._create_tables(connection, self._tables)
            connection.execute(f"PRAGMA application_id={_APPLICATION}")
            connection.execute(f"PRAGMA user_version={self._version}")

    @contextlib.contextmanager
    def exclusive(self, purpose: str = "file") -> Iterator[None]:
        """Hold a file lock that the system releases when its process dies; one lock per purpose."""
        if self._path is None or os.name != "posix":
            yield
            return
        import fcntl

        with open(f"{self._path}.{purpose}.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # --- healing -----------------------------------------------------------------------------------------------------

    def _heal(self) -> bool:
        """Set the file aside if it is still bad when we have the lock; whether to try again."""
        if self._path is None:
            return False
        self._forget_connection()
        try:
            with self.exclusive():
                problem = self._problem()
                if problem:
                    self._set_aside(problem)
        except OSError as error:
            self._report(StorageEvent("unwritable", f"database {self._path} cannot be set aside: {error}"))
            return False
        return True

    def _forget_connection(self) -> None:
        connection = self._of_this_process()
        self._local.connection = None
        if connection is not None:
            connection.close()

    def _problem(self) -> str:
        """What is wrong with the file; another process may have healed it already."""
        try:
            with contextlib.closing(self._raw(str(self._path))) as connection:
                answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                self._is_new(connection)
                return "" if answer == "ok" else str(answer)
        except (sqlite3.DatabaseError, _NotOursError) as error:
            # A disk that cannot be written now (full, over a quota) says nothing of what lies on it.
            moment = isinstance(error, sqlite3.OperationalError) and str(error).startswith("disk I/O error")
            return str(error) if _may_be_damage(error) and not moment else ""

    def _set_aside(self, problem: str) -> None:
        assert self._path is not None
        stamp = f"set-aside-{int(self._clock())}-{os.getpid()}"
        target = self._path.with_name(f"{self._path.name}.{stamp}")
        for companion in _COMPANIONS:
            source = Path(f"{self._path}{companion}")
            if source.exists():
                source.rename(f"{target}{companion}")
        self._report(StorageEvent("set-aside", f"database {self._path}: {problem}; kept as {target.name}"))
        for left in self.set_aside()[:-_KEPT_ASIDE]:
            for companion in _COMPANIONS:
                Path(f"{left}{companion}").unlink(missing_ok=True)

    def set_aside(self) -> list[Path]:
        """Files that were set aside, oldest first."""
        if self._path is None:
            return []
        found = self._path.parent.glob(f"{self._path.name}.set-aside-*")
        return sorted((path for path in found if not path.name.endswith(_COMPANIONS[1:])), key=lambda path: path.name)


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}


def _may_be_damage(error: Exception) -> bool:
    """Whether an error speaks of the file itself, not of the moment (locked, full, read-only)."""
    if isinstance(error, sqlite3.OperationalError):
        return str(error).startswith(("no such", "table ", "disk I/O error"))
    return isinstance(error, (sqlite3.DatabaseError, _NotOursError))


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
