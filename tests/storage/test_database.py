"""The measurement database: shared, forgetful of old fingerprints, and healing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_processes import WarmProcess, WarmProcesses

from mixbackend.contracts import StorageError
from mixbackend.storage import Database, StorageEvent

PLACE = ("region", "onnxruntime", "ort 1.31", "cpu", 2)


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "test.sqlite"


@pytest.fixture
def database(path: Path, events: list[StorageEvent]) -> Database:
    return Database(path, events.append, clock=lambda: 1000.0)


def test_rates_are_json(database: Database, path: Path) -> None:
    assert database.rates("device", "cpu") is None
    database.set_rates("device", "cpu", {"bytes_per_s": 1e10})
    assert database.rates("device", "cpu") == {"bytes_per_s": 1e10}
    assert database.rates("backend", "cpu") is None
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rates SET value='[broken'")
    assert database.rates("device", "cpu") is None


def test_quarantine_ends_with_the_fingerprint(database: Database) -> None:
    database.quarantine("region", "onnxruntime", "ort 1.31", "session failed")
    assert database.quarantined("region", "onnxruntime", "ort 1.31") == "session failed"
    assert database.quarantined("region", "onnxruntime", "ort 1.32") is None
    assert database.quarantined("region", "inductor", "ort 1.31") is None
    database.quarantine("region", "onnxruntime", "ort 1.32", "still failing")
    assert [row["reason"] for row in database.rows("quarantine")] == ["still failing"]
    database.quarantine("other", "eager", "", "odd")
    database.release(backend="onnxruntime")
    assert [row["region"] for row in database.rows("quarantine")] == ["other"]
    database.release()
    assert database.rows("quarantine") == []


def test_verification_is_per_shape_class(database: Database) -> None:
    database.confirm("region", "onnxruntime", "1", "small")
    assert database.confirmations("region", "onnxruntime", "1", "small")
    assert not database.confirmations("region", "onnxruntime", "1", "large")
    assert not database.confirmations("region", "onnxruntime", "2", "small")


def test_in_memory_is_shared_by_threads() -> None:
    database = Database(None)
    thread = threading.Thread(target=database.confirm, args=("region", "eager", "1"))
    thread.start()
    thread.join()
    assert database.confirmations("region", "eager", "1")


def test_open_uses_a_private_folder(folder: Path) -> None:
    Database.open(folder).confirm("region", "eager", "1")
    assert all(item.stat().st_mode & 0o077 == 0 for item in folder.glob("*.sqlite"))
    folder.chmod(0o777)
    with pytest.raises(StorageError):
        Database.open(folder)


# --- damage ----------------------------------------------------------------------------------------------------------


def foreign_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cooking (recipe TEXT)")


def newer_version(path: Path) -> None:
    Database(path).confirm("region", "eager", "1")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")


def missing_table(path: Path) -> None:
    Database(path).confirm("region", "eager", "1")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE quarantine")


def test_a_file_from_before_there_were_plans_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "test.sqlite"
    Database(path).confirm("region", "eager", "1")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE plans")
    database = Database(path)
    assert database.plan("graph") is None
    database.set_plan("graph", {"regions": []}, device="cpu", fingerprints={})
    assert database.plan("graph") == {"regions": []} and database.confirmations("region", "eager", "1") == 1
    assert database.set_aside() == []


def overwritten_pages(path: Path) -> None:
    first = Database(path)
    for index in range(300):
        first.confirm(f"region {index}", "eager", "x" * 100)
    first.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"this is no database" * 100),
        lambda path: path.write_bytes(os.urandom(8192)),
        foreign_tables,
        newer_version,
        missing_table,
        overwritten_pages,
    ],
)
def test_a_bad_file_is_set_aside_and_rebuilt(damage: object, path: Path, events: list[StorageEvent]) -> None:
    damage(path)  # type: ignore[operator]
    database = Database(path, events.append)
    database.confirm("fresh", "eager", "1")
    database.quarantine("fresh", "eager", "1", "why")
    assert database.confirmations("fresh", "eager", "1")
    assert database.quarantined("fresh", "eager", "1") == "why"
    assert [event.kind for event in events] == ["set-aside"]
    assert len(list(path.parent.glob("*.set-aside-*"))) >= 1


def test_a_file_that_breaks_while_open_is_healed(database: Database, path: Path, events: list[StorageEvent]) -> None:
    database.confirm("region", "eager", "1")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(b"\0garbage" * 4096)
    database.confirm("region", "eager", "2")
    database.confirm("region", "eager", "3")
    assert database.confirmations("region", "eager", "3")
    assert "set-aside" in [event.kind for event in events]


def test_an_unwritable_place_is_reported_not_raised(folder: Path, events: list[StorageEvent]) -> None:
    database = Database(folder / "missing" / "test.sqlite", events.append)
    database.confirm("region", "eager", "1")
    assert not database.confirmations("region", "eager", "1")
    assert [event.kind for event in events] == ["unwritable", "unreadable"]


def test_a_lock_held_too_long_loses_the_write_only(
    path: Path, events: list[StorageEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixbackend.storage.sqlite.BUSY_TIMEOUT_S", 0.05)
    database = Database(path, events.append)
    database.confirm("before", "eager", "1")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    database.confirm("during", "eager", "1")
    assert database.confirmations("before", "eager", "1")
    holder.execute("ROLLBACK")
    holder.close()
    database.confirm("after", "eager", "1")
    assert database.confirmations("after", "eager", "1")
    assert [event.kind for event in events] == ["unwritable"]


# --- many threads and processes --------------------------------------------------------------------------------------

_WRITER = """
import sys
from pathlib import Path
from mixbackend.storage import Database
events = []
database = Database(Path(sys.argv[1]), events.append)
print("ready", flush=True)
for index in range(int(sys.argv[3])):
    database.confirm(f"region {index}", sys.argv[2], "1")
assert not [event for event in events if event.kind != "set-aside"], events
"""


@pytest.fixture
def writer(warm: WarmProcesses, path: Path) -> Callable[[str, int], WarmProcess]:
    return lambda name, count: warm.start(_WRITER, str(path), name, str(count))


def count_verified(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT count(*) FROM verified").fetchone()[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("begin", ["missing", "damaged"])
def test_many_processes_write_and_heal_one_file(writer: Any, path: Path, begin: str) -> None:
    if begin == "damaged":
        path.write_bytes(b"this is no database" * 100)
    processes = [writer(f"writer {index}", 150) for index in range(3)]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert count_verified(path) == 450
    assert len(list(path.parent.glob("*.set-aside-*"))) == (begin == "damaged")


def test_a_killed_writer_leaves_a_sound_file(writer: Any, path: Path, events: list[StorageEvent]) -> None:
    process = writer("doomed", 10_000_000)
    process.stdout.readline()
    time.sleep(0.4)
    process.kill()
    process.communicate()
    database = Database(path, events.append)
    database.confirm("after", "eager", "1")
    assert database.confirmations("after", "eager", "1")
    assert database.confirmations("region 0", "doomed", "1")
    assert not events


def test_threads_share_a_database(database: Database, path: Path, events: list[StorageEvent]) -> None:
    def work(index: int) -> None:
        for round in range(40):
            database.confirm(f"region {round}", f"thread {index}", "1")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count_verified(path) == 240
    assert not events


def test_a_forked_child_opens_its_own_connection(database: Database, path: Path) -> None:
    database.confirm("parent", "eager", "1")
    child = os.fork()
    if child == 0:
        database.confirm("child", "eager", "1")
        os._exit(0 if database.confirmations("parent", "eager", "1") else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert database.confirmations("child", "eager", "1")


def test_a_deleted_folder_is_no_error(database: Database, folder: Path) -> None:
    database.confirm("region", "eager", "1")
    shutil.rmtree(folder)
    database.confirm("region 2", "eager", "1")


def test_what_is_done_alone_is_done_by_one_process_at_a_time(
    warm: WarmProcesses, database: Database, path: Path
) -> None:
    script = (
        "import sys; from pathlib import Path; from mixbackend.storage import Database\n"
        "print('asks', flush=True)\n"
        "with Database(Path(sys.argv[1])).alone('work'): print('mine', flush=True)"
    )
    with database.alone("work"):
        process = warm.start(script, str(path))
        assert process.stdout.readline() == "asks\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        with database.alone("other work"):
            assert process.poll() is None
    assert process.communicate()[0] == "mine\n"


def test_alone_goes_on_where_there_is_no_lock(folder: Path, events: list[StorageEvent]) -> None:
    with Database(folder / "missing" / "test.sqlite", events.append).alone("work"):
        pass
    with Database(None).alone("work"):
        pass
    assert [event.kind for event in events] == ["unwritable"]
