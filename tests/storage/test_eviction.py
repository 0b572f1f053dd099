"""Bounds and clearing: what is out of date goes first, and what killed processes left goes at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mixbackend.storage import (
    ArtifactStore,
    Database,
    Label,
    StorageEvent,
    ThisMachine,
    artifact_key,
    evict,
)
from mixbackend.storage.eviction import KINDS, clear, clear_folder, keep_in_bounds, left_by_races, sweep_races
from mixbackend.storage.tables import TABLES

DEVICE = "cpu of one make"
HERE = ThisMachine({"fast": "fast 2 threads=2"}, (DEVICE,))


@pytest.fixture
def database(folder: Path, events: list[StorageEvent]) -> Database:
    return Database(folder / "test.sqlite", events.append)


def plan(database: Database, graph: str, fingerprint: str, at: float) -> None:
    prints = json.dumps({"fast": fingerprint})
    row = {"subject": graph, "device": DEVICE, "fingerprints": prints, "value": "{}", "planned_at": at}
    assert database.take("plans", row)


def fill(database: Database, count: int, fingerprint: str, at: float) -> None:
    for number in range(count):
        plan(database, f"region {fingerprint} {number} " + "x" * 400, fingerprint, at + number)


def prints(database: Database) -> list[str]:
    return [json.loads(row["fingerprints"])["fast"] for row in database.rows("plans")]


def test_rows_of_another_fingerprint_stay_while_there_is_room(database: Database) -> None:
    fill(database, 100, "fast 1", 1.0)
    assert keep_in_bounds(database, HERE, most_bytes=1e6) == 0
    assert prints(database) == ["fast 1"] * 100


def test_out_of_date_rows_go_first_then_the_oldest(database: Database) -> None:
    fill(database, 300, "fast 1", 5000.0)
    fill(database, 300, "fast 2 threads=2", 1.0)
    before = database.used_bytes()
    removed = keep_in_bounds(database, HERE, most_bytes=before - 1)
    assert 0 < removed <= 300 and database.used_bytes() <= 0.8 * before
    assert prints(database).count("fast 2 threads=2") == 300, "all of them are older, and none of them is stale"
    keep_in_bounds(database, HERE, most_bytes=0.3 * before)
    left = database.rows("plans")
    assert set(prints(database)) == {"fast 2 threads=2"}
    assert len(left) < 300 and left[-1]["planned_at"] == 300.0 and left[0]["planned_at"] > 1.0


def test_the_file_itself_becomes_smaller(database: Database, folder: Path) -> None:
    fill(database, 2000, "fast 1", 1.0)
    database.shrink()
    before = (folder / "test.sqlite").stat().st_size
    keep_in_bounds(database, HERE, most_bytes=0.1 * before)
    assert (folder / "test.sqlite").stat().st_size < 0.2 * before


def test_a_row_that_was_written_again_is_not_removed(database: Database) -> None:
    plan(database, "region", "fast 1", 1.0)
    (row,) = database.rows("plans")
    plan(database, "region", "fast 1", 2.0)
    assert not database.remove("plans", row)
    assert prints(database) == ["fast 1"]


def everything(folder: Path, fingerprint: str, device: str = DEVICE) -> tuple[Database, ArtifactStore]:
    database, store = Database(folder / "test.sqlite"), ArtifactStore(folder)
    database.set_rates("backend", f"fast | {fingerprint} | {device} | torch 1 | threads 2", {})
    database.set_decision("graph", {}, device=device, fingerprints={"fast": fingerprint})
    database.set_plan("graph", {}, device=device, fingerprints={"fast": fingerprint})
    database.quarantine("region", "fast", fingerprint, "crashed")
    database.confirm("region", "fast", fingerprint)
    store.put(artifact_key("region", "fast", fingerprint, "live", device), b"code", Label("fast", fingerprint, device))
    return database, store


@pytest.mark.parametrize(
    ("fingerprint", "device", "stale"),
    [
        ("fast 1 threads=2", DEVICE, True),
        ("fast 2 threads=2", DEVICE, False),
        ("fast 2 threads=16", DEVICE, False),
        ("fast 1 threads=2", "cpu of another make", False),
    ],
)
def test_what_is_out_of_date(fingerprint: str, device: str, stale: bool, folder: Path) -> None:
    """A process with other threads may come back; what another machine's backends are now is not known here."""
    database, store = everything(folder, fingerprint, device)
    for kind in ("rates", "decisions", "plans"):
        (row,) = database.rows(kind)
        assert bool(HERE.stale(kind, row)) == stale
        assert HERE.other_device(kind, row) == ("" if device == DEVICE else device)
    (artifact,) = store.artifacts()
    assert bool(HERE.stale_label(artifact.label)) == stale


def test_a_backend_that_is_gone_is_out_of_date_where_all_are_known(folder: Path) -> None:
    database, _ = everything(folder, "fast 1")
    (row,) = database.rows("decisions")
    assert ThisMachine({"eager": "1"}, (DEVICE,)).stale("decisions", row) == "backend fast is not here"
    assert ThisMachine({"eager": "1"}, (DEVICE,), complete=False).stale("decisions", row) == ""


def left(database: Database, store: ArtifactStore) -> set[str]:
    found = {name for name in TABLES if database.rows(name)}  # type: ignore[arg-type]
    return found | ({"artifacts"} if store.usage()[0] else set())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "left over"])
def test_one_kind_is_cleared_and_no_other(kind: str, folder: Path) -> None:
    database, store = everything(folder, "fast 2 threads=2")
    assert clear(database, store, HERE, {kind}, stale_only=False, dry_run=True) == {kind: 1}
    assert len(left(database, store)) == 6
    assert clear(database, store, HERE, {kind}, stale_only=False, dry_run=False) == {kind: 1}
    assert left(database, store) == {*TABLES, "artifacts"} - {kind}


def test_only_what_is_out_of_date_is_cleared(folder: Path) -> None:
    database, store = everything(folder, "fast 2 threads=2")
    assert not +clear(database, store, HERE, KINDS, stale_only=True, dry_run=False)
    plan(database, "other", "fast 1", 1.0)
    assert +clear(database, store, HERE, KINDS, stale_only=True, dry_run=False) == {"plans": 1}
    assert len(left(database, store)) == 6


def test_clearing_takes_what_killed_writers_and_races_left(folder: Path) -> None:
    database, store = everything(folder, "fast 1")
    (next(store.folder.glob("*")) / ".writing-abc").write_bytes(b"half")
    (folder / "tuning-abc").mkdir()
    (folder / "tuning-abc" / "values.bin").write_bytes(b"x")
    (folder / "test.sqlite.set-aside-1-1").write_bytes(b"x")
    (folder / "mixbackend-v1.sqlite").write_bytes(b"x")
    (folder / "mixbackend-v1.sqlite-wal").write_bytes(b"x")
    assert clear(database, store, HERE, KINDS, True, dry_run=True)["left over"] == 2
    assert clear(database, store, HERE, KINDS, False, dry_run=True)["left over"] == 3
    assert clear(database, store, HERE, KINDS, False, dry_run=False)["left over"] == 3
    files = {path.name for path in folder.rglob("*") if path.is_file()}
    assert all(name.startswith("test.sqlite") and "set-aside" not in name for name in files - {".writing-abc"})


def test_what_a_killed_race_left_goes_unless_a_race_runs(database: Database, folder: Path) -> None:
    (folder / "tuning-abc").mkdir()
    (folder / "tuning-abc" / "values.bin").write_bytes(b"x" * 1000)
    (folder / "tuning-link").symlink_to(folder)
    with database.alone("tuning"):
        evict(Database(folder / "test.sqlite"), lambda: HERE)
        assert left_by_races(folder)
    assert [path.name for path in sweep_races(database)] == ["tuning-abc"]
    assert not left_by_races(folder) and (folder / "test.sqlite").exists()


def test_opening_cares_for_bounds(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(database, 300, "fast 1", 1.0)
    asked: list[ThisMachine] = []

    def machine() -> ThisMachine:
        asked.append(HERE)
        return HERE

    evict(database, machine)
    assert not asked and len(prints(database)) == 300
    monkeypatch.setattr("mixbackend.storage.eviction.DATABASE_BYTES", 50_000)
    evict(database, machine)
    assert asked and database.used_bytes() <= 50_000


def test_set_aside_databases_do_not_pile_up(folder: Path) -> None:
    path = folder / "test.sqlite"
    now = [1000.0]
    for _ in range(6):
        now[0] += 1
        path.write_bytes(b"this is no database" * 100)
        database = Database(path, lambda event: None, clock=lambda: now[0])
        database.confirm("region", "fast", "1")
        database.close()
    assert [item.name.split("-")[2] for item in database.set_aside()] == ["1004", "1005", "1006"]


def test_native_code_is_cleared_without_what_lies_below(tmp_path: Path) -> None:
    (tmp_path / "one.so").write_bytes(b"x")
    (tmp_path / "two.ref").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    assert clear_folder(tmp_path, dry_run=True) == 2
    assert clear_folder(tmp_path, dry_run=False) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert clear_folder(tmp_path / "missing", dry_run=False) == 0
