"""Locks of the database's file are real: other connections, threads and forks of a process do not lose them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from storage_forks import status_of

from mixbackend.storage.events import StorageEvent
from mixbackend.storage.sqlite import SqliteFile

TABLES = {"table0": "key TEXT PRIMARY KEY"}
ADD = "INSERT INTO table0 (key) VALUES (?)"


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "test.sqlite"


@pytest.fixture
def open_file(path: Path, events: list[StorageEvent]) -> SqliteFile:
    return make(path, events)


def make(path: Path, events: list[StorageEvent]) -> SqliteFile:
    return SqliteFile(path, TABLES, 3, events.append, time.time)


def is_guarded(path: Path) -> bool:
    """Whether another process that comes and goes leaves the write-ahead log, since the file is in use."""
    log = Path(f"{path}-wal")
    assert log.exists()
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM table0').fetchall()"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)
    return log.exists()


def test_a_second_connection_of_the_process_leaves_the_locks(open_file: SqliteFile, path: Path) -> None:
    open_file.write(ADD, ("first",))
    second = make(path, [])
    assert second.read("SELECT count(*) FROM table0") == [(1,)]
    second.close()
    assert is_guarded(path)


def test_another_thread_leaves_the_locks(open_file: SqliteFile, path: Path) -> None:
    open_file.write(ADD, ("first",))
    thread = threading.Thread(target=open_file.read, args=("SELECT count(*) FROM table0",))
    thread.start()
    thread.join()
    assert is_guarded(path)


def test_a_child_of_a_fork_has_locks_of_its_own(open_file: SqliteFile, path: Path) -> None:
    open_file.write(ADD, ("parent",))
    child_wrote, parent_closed = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            open_file.write(ADD, ("child",))
            os.write(child_wrote[1], b".")
            os.read(parent_closed[0], 1)
            os._exit(0 if is_guarded(path) else 1)
        finally:
            os._exit(2)
    os.read(child_wrote[0], 1)
    open_file.close()
    os.write(parent_closed[1], b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (*child_wrote, *parent_closed):
        os.close(end)
    assert open_file.read("SELECT key FROM table0 ORDER BY key") == [("child",), ("parent",)]


def test_a_fork_in_the_middle_of_a_statement_does_without_the_file(open_file: SqliteFile, path: Path) -> None:
    open_file.write(ADD, ("parent",))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=open_file.write, args=(ADD, ("waits",)))
        thread.start()
        time.sleep(0.2)

        def look() -> None:
            events: list[StorageEvent] = []
            for file in (open_file, make(path, events)):
                assert file.read("SELECT * FROM table0") == []
                assert file.write(ADD, ("child",)) == 0
            assert [event.kind for event in events] == ["unreadable", "unwritable"]
            assert "was in use when this process was forked" in str(events[0])

        assert status_of(look) == 0
        assert thread.is_alive(), "the statement ended before the fork"
        other.execute("ROLLBACK")
    thread.join()
    assert status_of(lambda: open_file.write(ADD, ("later child",))) == 0
    assert open_file.read("SELECT count(*) FROM table0") == [(3,)]


def test_an_error_that_ends_the_transaction_is_not_hidden(
    open_file: SqliteFile, path: Path, events: list[StorageEvent]
) -> None:
    open_file.write(ADD, ("lost",))
    os.truncate(f"{path}-wal", 100)
    assert make(path, events).read("SELECT * FROM table0") == []
    assert [event.kind for event in events] == ["unreadable"] and "disk I/O error" in str(events[0])


def test_the_file_is_for_its_user_alone(open_file: SqliteFile, path: Path) -> None:
    before = os.umask(0)
    try:
        open_file.write(ADD, ("first",))
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in (path, Path(f"{path}-wal"))} == {0o600}
