"""One SQLite file that many threads and processes share, and that heals.

Place: below ``database``; knows nothing of what the tables mean.
Invariants: no file descriptor of the file is opened but by SQLite, since POSIX drops all of a process's locks on a file
when any of its descriptors is closed. No connection lives across a fork: it is closed before, and a child that was
forked in the middle of a statement does without the file. Reads of a file that cannot be read give no rows and writes
are lost, with a report; a file that is no database of ours is renamed, under a lock, and begun anew.
Source: "How To Corrupt An SQLite Database File" (sqlite.org), sections 2.2 and 2.6.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
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
_inherited: set[str] = set()
"""Files that were in use when this process was forked: SQLite believes that it holds its parent's locks on them."""


class _NotOursError(Exception):
    """The file is damaged, newer, or of another program."""


class _InheritedError(Exception):
    """The file was in use when this process was forked."""


class SqliteFile:
    """See the module's docstring. Threads share one connection and take turns.

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
        # Statements may take longer than what such locks are for; a fork waits for them, so that it can close.
        self._lock = forks.reentrant_lock()
        self._connection: sqlite3.Connection | None = None
        self._in_use_at_fork = False
        self._abandoned: sqlite3.Connection | None = None
        if path is None:
            self._connection = self._connect(":memory:")
        else:
            forks.close_before(self)
            forks.follow(self)

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
        """Close the connection; the next statement opens a new one. What is in memory stays."""
        if self._path is None:
            return
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def before_fork(self) -> None:
        """Close, unless a thread is in the middle of a statement."""
        if self._lock.acquire(blocking=False):
            try:
                self._in_use_at_fork = False
                self.close()
            finally:
                self._lock.release()
        else:
            self._in_use_at_fork = True

    def after_fork(self) -> None:
        """Leave a connection of the parent as it is: closing it would write to the parent's file."""
        if self._in_use_at_fork:
            _inherited.add(str(self._path))
            self._abandoned, self._connection = self._connection, None

    def _run(self, trouble: str, statement: str, values: Sequence[Any], answer: Callable[[sqlite3.Cursor], Any]) -> Any:
        for attempt in (1, 2):
            try:
                with self._lock:
                    return answer(self._opened().execute(statement, tuple(values)))
            except (sqlite3.DatabaseError, _NotOursError, _InheritedError, OSError) as error:
                if attempt == 2 or not _may_be_damage(error) or not self._heal():
                    self._report(StorageEvent(trouble, f"database {self._path}: {error}"))  # type: ignore[arg-type]
                    break
        return None

    # --- connections -------------------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if str(self._path) in _inherited:
                raise _InheritedError("was in use when this process was forked; start processes after `spawn`")
            self._connection = self._connect(str(self._path))
        return self._connection

    def _connect(self, target: str) -> sqlite3.Connection:
        is_new = self._path is not None and not self._path.exists()
        connection = self._raw(target)
        try:
            if is_new:
                # For this user alone; SQLite follows the umask, and gives the file's mode to its companions.
                os.chmod(target, 0o600)
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
        try:
            with self._lock, self.exclusive():
                self.close()
                problem = self._problem()
                if problem:
                    self._set_aside(problem)
        except OSError as error:
            self._report(StorageEvent("unwritable", f"database {self._path} cannot be set aside: {error}"))
            return False
        return True

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


def copy_database(source: Path, target: Path, report: Report) -> None:
    """Begin a file with what another one holds that can only be read; nothing happens where either has begun.

    What a killed writer left in the log beside the source is seen only where SQLite's own files lie there too.
    """
    if target.exists() or not source.exists():
        return
    partial = target.with_name(f"{target.name}.{secrets.token_hex(8)}")
    try:
        partial.touch(0o600)
        for way in ("mode=ro", "immutable=1"):
            # Of a folder that cannot be written, SQLite opens a file in WAL mode only if nothing will change it.
            with contextlib.suppress(sqlite3.OperationalError), contextlib.ExitStack() as stack:
                address = f"{source.resolve().as_uri()}?{way}"
                theirs = stack.enter_context(contextlib.closing(sqlite3.connect(address, uri=True)))
                ours = stack.enter_context(contextlib.closing(sqlite3.connect(partial)))
                theirs.backup(ours)
                break
        else:
            raise OSError("it cannot be opened")
        with contextlib.suppress(FileExistsError):
            os.link(partial, target)  # another thread may have been first
    except (OSError, sqlite3.DatabaseError) as error:
        report(StorageEvent("unreadable", f"database {source}: {error}"))
    finally:
        for companion in _COMPANIONS:
            Path(f"{partial}{companion}").unlink(missing_ok=True)


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
        # SQLite itself rolls back after some errors; another ROLLBACK would hide them.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
