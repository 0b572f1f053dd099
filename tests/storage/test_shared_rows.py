"""What a fleet shares: decisions behind the local file, verified, in time, and never in the way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from warm_processes import WarmProcesses

from mixbackend.storage import ArtifactStore, Database, StorageEvent, artifact_key
from mixbackend.storage.background_io import BackgroundQueue, finish, within_time

KEY = artifact_key("region", "fast", "fast 1", "live", "cpu of one make")


@pytest.fixture
def machine(tmp_path: Path, events: list[StorageEvent]) -> Callable[[str], Database]:
    """Gives the database of a machine of the fleet."""

    def open(name: str) -> Database:
        return Database.open(tmp_path / name, remote=f"file://{tmp_path}/fleet", report=events.append)

    return open


def decide(database: Database, value: dict[str, Any], subject: str = "graph", device: str = "cpu of one make") -> None:
    database.set_decision(subject, value, device=device, fingerprints={"fast": "fast 1"})
    finish(10)


def files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "fleet").rglob("*") if path.is_file()]


def test_a_decision_reaches_other_machines(
    machine: Callable[[str], Database], tmp_path: Path, events: list[StorageEvent]
) -> None:
    decide(machine("one"), {"choice": 1})
    two = machine("two")
    assert two.has_decisions() and two.decision("graph") == {"choice": 1}
    assert two.decision("other") is None
    alone = Database.open(tmp_path / "two", report=events.append)
    assert alone.decision("graph") == {"choice": 1}, "it is kept locally"
    assert alone.rows("decisions") == machine("one").rows("decisions")
    assert not events


def test_what_is_here_is_not_asked_for(machine: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch) -> None:
    decide(machine("one"), {"choice": 1})
    two = machine("two")
    decide(two, {"choice": 2})
    monkeypatch.setattr("mixbackend.storage.remote.within_time", lambda *_: pytest.fail("the remote level was asked"))
    assert two.decision("graph") == {"choice": 2}


def test_decisions_without_a_device_stay_here(machine: Callable[[str], Database], tmp_path: Path) -> None:
    decide(machine("one"), {"trials": []}, subject="graph-unfinished", device="")
    assert files(tmp_path) == []


def test_a_question_is_asked_once(machine: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def count(timeout_s: float, work: Callable[[], Any]) -> Any:
        asked.append(timeout_s)
        return within_time(timeout_s, work)

    monkeypatch.setattr("mixbackend.storage.remote.within_time", count)
    two = machine("two")
    for _ in range(5):
        assert two.decision("graph") is None
    assert len(asked) == 1


def rewrite(path: Path, edit: Callable[[list[dict[str, Any]]], Any], name: str) -> None:
    """Change rows of the remote level as somebody would who knows the form."""
    from mixbackend.storage import entry

    found = entry.decode(name, path.read_bytes())
    assert isinstance(found, entry.Entry)
    path.write_bytes(entry.encode(name, json.dumps(edit(json.loads(found.content))).encode()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: path.write_bytes(b"\0" * 500),
        lambda path: rewrite(path, lambda rows: [{**rows[0], "decided_at": "now"}], "decisions graph"),
        lambda path: rewrite(path, lambda rows: [{**rows[0], "value": "broken"}], "decisions graph"),
        lambda path: rewrite(path, lambda rows: 7, "decisions graph"),
    ],
)
def test_damaged_rows_are_told_and_replaced(
    damage: Callable[[Path], None], machine: Callable[[str], Database], tmp_path: Path, events: list[StorageEvent]
) -> None:
    decide(machine("one"), {"choice": 1})
    (path,) = files(tmp_path)
    damage(path)
    two = machine("two")
    assert two.decision("graph") is None
    assert [event.kind for event in events] == ["corrupt"]
    decide(two, {"choice": 2})
    assert machine("three").decision("graph") == {"choice": 2}


def test_a_row_under_the_wrong_name_is_nobodys(machine: Callable[[str], Database], tmp_path: Path) -> None:
    decide(machine("one"), {"choice": 1})
    (path,) = files(tmp_path)
    rewrite(path, lambda rows: [{**rows[0], "subject": "another graph"}], "decisions graph")
    assert machine("two").decision("graph") is None


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A remote level that does not answer until the event is set."""
    answer = threading.Event()

    def hang(*_: object, **__: object) -> bytes:
        answer.wait(60)
        raise FileNotFoundError

    for name in ("cat_file", "pipe_file", "makedirs"):
        monkeypatch.setattr(MemoryFileSystem, name, hang)
    monkeypatch.setattr("mixbackend.storage.shared.LONGEST_READ_S", 0.1)
    monkeypatch.setattr("mixbackend.storage.artifacts.LONGEST_READ_S", 0.1)
    yield answer
    answer.set()
    finish(10)


def test_a_remote_that_hangs_costs_a_bounded_time(
    hanging: threading.Event, tmp_path: Path, events: list[StorageEvent]
) -> None:
    database = Database.open(tmp_path / "one", remote="memory://fleet", report=events.append)
    store = ArtifactStore.open(tmp_path / "one", remote="memory://fleet", report=events.append)
    start = time.monotonic()
    for number in range(20):
        assert database.decision(f"graph {number}") is None
        assert store.get(artifact_key(f"{number}", "fast", "1", "live", "cpu")) is None
    assert time.monotonic() - start < 5.0
    assert [event.kind for event in events] == ["remote"] * 6
    assert sum("not asked again" in event.detail for event in events) == 2


def test_writing_to_a_remote_is_not_waited_for(
    hanging: threading.Event, tmp_path: Path, events: list[StorageEvent]
) -> None:
    database = Database.open(tmp_path / "one", remote="memory://fleet", report=events.append)
    store = ArtifactStore.open(tmp_path / "one", remote="memory://fleet", report=events.append)
    start = time.monotonic()
    database.set_decision("graph", {"choice": 1}, device="cpu", fingerprints={})
    assert store.put(KEY, b"content")
    assert time.monotonic() - start < 2.0
    assert database.decision("graph") == {"choice": 1} and store.get(KEY) == b"content"


def test_a_remote_that_never_finishes_writing_is_given_up(
    hanging: threading.Event, tmp_path: Path, events: list[StorageEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixbackend.storage.remote.LONGEST_WRITE_S", 0.05)
    store = ArtifactStore.open(tmp_path / "one", remote="memory://fleet", report=events.append)
    store.put(KEY, b"content")
    time.sleep(0.3)
    for number in range(3):
        store.put(artifact_key(f"{number}", "fast", "1", "live", "cpu"), b"content")
    assert [event.kind for event in events] == ["remote"]
    assert "not asked again" in events[0].detail


def test_a_remote_that_fails_is_told_of_and_left_alone(
    tmp_path: Path, events: list[StorageEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError("no key")

    for name in ("cat_file", "pipe_file"):
        monkeypatch.setattr(MemoryFileSystem, name, fail)
    database = Database.open(tmp_path / "one", remote="memory://fleet", report=events.append)
    for number in range(6):
        assert database.decision(f"graph {number}") is None
        database.set_decision("known", {"choice": 1}, device="cpu", fingerprints={})
    finish(10)
    assert [event.kind for event in events] == ["remote"] * 3
    assert database.decision("known") == {"choice": 1}


# --- work that nobody waits for --------------------------------------------------------------------------------------


def test_work_is_done_in_order_and_once_per_name() -> None:
    queue, done, hold = BackgroundQueue(), [], threading.Event()
    assert queue.add("first", lambda: hold.wait(10) and done.append("first"))
    for name in ("second", "third", "second"):
        assert queue.add(name, lambda name=name: done.append(name))  # type: ignore[misc]
    assert not queue.flush(0.05)
    hold.set()
    assert queue.flush(10) and done == ["first", "second", "third"]
    assert queue.add("again", lambda: done.append("again")) and queue.flush(10) and done[-1] == "again"


def test_what_waits_is_bounded() -> None:
    queue, hold = BackgroundQueue(most_bytes=100), threading.Event()
    assert queue.add("first", lambda: hold.wait(10) and None)
    time.sleep(0.2)
    assert queue.add("second", lambda: None, 90)
    assert not queue.add("third", lambda: None, 20)
    hold.set()
    assert queue.flush(10) and queue.add("third", lambda: None, 20)


def test_answers_and_errors_come_through() -> None:
    assert within_time(10, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within_time(10, lambda: 1 // 0)
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        within_time(0.05, lambda: time.sleep(1))


def test_what_waits_is_written_before_the_process_ends(warm: WarmProcesses, tmp_path: Path) -> None:
    script = (
        "import sys; from mixbackend.storage import Database\n"
        "database = Database.open(sys.argv[1] + '/one', remote='file://' + sys.argv[1] + '/fleet')\n"
        "for number in range(20): database.set_decision(f'graph {number}', {}, device='cpu', fingerprints={})\n"
    )
    assert warm.run(script, str(tmp_path)).returncode == 0
    assert len(files(tmp_path)) == 20
