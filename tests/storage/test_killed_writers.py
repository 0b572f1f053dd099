"""``kill -9`` at random moments: nothing that was acknowledged is lost, nothing wrong stays, nothing piles up."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import sqlite3
import time
from pathlib import Path

import pytest
from storage_forks import Writer, rounds, sleep_somewhat
from tiers import draws

from mixbackend.storage import ArtifactStore, Database, Label, StorageEvent, artifact_key

KILLS = draws(10, 50)
LABEL = Label("fast", "fast 1", "cpu")


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def key(number: int) -> str:
    return artifact_key(f"region {number}", "fast", "fast 1", "live", "cpu")


def content(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest() * (200 + number % 1000)


def put(store: ArtifactStore, number: int) -> None:
    assert store.put(key(number), content(number), LABEL)


def test_artifacts_survive(folder: Path, events: list[StorageEvent], chance: random.Random) -> None:
    acknowledged: set[int] = set()
    kills = 0
    for _ in rounds(KILLS, lambda: len(acknowledged) > KILLS):
        store = ArtifactStore(folder, report=events.append)
        # Some are written anew while they are there: others must see the old or the new one.
        start = max(acknowledged, default=0) - kills % 4
        writer = Writer(lambda number, store=store: put(store, number), itertools.count(max(0, start)))  # type: ignore[misc]
        sleep_somewhat(chance, 0.08)
        acknowledged.update(writer.kill())
        kills += 1
        reader = ArtifactStore(folder, report=events.append)
        assert all(reader.get(key(number)) == content(number) for number in sorted(acknowledged)[-100:])
    reader = ArtifactStore(folder, report=events.append)
    assert all(reader.get(key(number)) == content(number) for number in acknowledged)
    assert events == []
    remains = list(folder.rglob(".writing-*"))
    assert len(remains) <= kills
    later = ArtifactStore(folder, report=events.append, clock=lambda: time.time() + 7200)
    put(later, 0)
    assert not list(folder.rglob(".writing-*")), "the first write of a later process sweeps"


def test_a_full_store_survives(folder: Path, events: list[StorageEvent], chance: random.Random) -> None:
    """Killed while others are evicted: whatever is there is right, and the bound holds."""
    limit = 400_000
    for _ in range(KILLS // 2):
        store = ArtifactStore(folder, max_bytes=limit, report=events.append)
        writers = [
            Writer(lambda number, store=store: put(store, number % 60), itertools.count(start))  # type: ignore[misc]
            for start in (0, 30)
        ]
        sleep_somewhat(chance, 0.08)
        for writer in writers:
            writer.kill()
        reader = ArtifactStore(folder, max_bytes=limit, report=events.append)
        assert all(reader.get(key(number)) in (None, content(number)) for number in range(60))
    put(ArtifactStore(folder, max_bytes=limit, report=events.append), 0)
    assert events == []
    assert ArtifactStore(folder).usage()[1] <= limit


def remember(database: Database, who: str, number: int) -> None:
    """One of each kind of row."""
    database.set_rates("backend", f"{who} {number}", {"entry_s": float(number)})
    database.set_decision(f"{who} {number}", {"number": number, "more": "x" * 500}, device="cpu", fingerprints={})
    database.confirm(f"{who} {number}", "fast", "fast 1")


def lost(path: Path, who: str, numbers: set[int], events: list[StorageEvent]) -> list[int]:
    database = Database(path, events.append)
    rates = {row["subject"]: row["value"] for row in database.rows("rates")}
    verified = {row["region"] for row in database.rows("verified")}
    decided = {row["subject"]: row["value"] for row in database.rows("decisions")}
    database.close()
    return [
        number
        for number in numbers
        if rates.get(f"{who} {number}") != json.dumps({"entry_s": float(number)})
        or f"{who} {number}" not in verified
        or f'"number": {number},' not in decided.get(f"{who} {number}", "")
    ]


def sound(path: Path) -> bool:
    connection = sqlite3.connect(path)
    answer = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    return answer == [("ok",)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("together", [1, 2, 8])
def test_rows_survive(together: int, folder: Path, events: list[StorageEvent], chance: random.Random) -> None:
    """One process, two and eight at once, each killed by itself; the file is even begun under fire."""
    path = folder / "test.sqlite"
    acknowledged: dict[str, set[int]] = {f"writer {index}": set() for index in range(together)}
    for _ in rounds(-(-KILLS // together), lambda: sum(map(len, acknowledged.values())) > KILLS):
        database = Database(path, events.append)
        writers = {
            who: Writer(
                lambda number, who=who, database=database: remember(database, who, number),  # type: ignore[misc]
                itertools.count(len(numbers)),
            )
            for who, numbers in acknowledged.items()
        }
        for who, writer in writers.items():
            sleep_somewhat(chance, 0.1)
            acknowledged[who].update(writer.kill())
    for who, numbers in acknowledged.items():
        assert lost(path, who, numbers, events) == []
    assert sound(path)
    assert events == []
    files = {item.name for item in folder.iterdir()}
    assert files <= {"test.sqlite", "test.sqlite-wal", "test.sqlite-shm", "test.sqlite.file.lock"}


def test_a_killed_process_releases_its_lock(folder: Path, chance: random.Random) -> None:
    path = folder / "test.sqlite"

    def hold(number: int) -> None:
        with Database(path).alone("tuning"):
            time.sleep(1000 if number == 3 else 0)

    for _ in range(5):
        writer = Writer(hold, itertools.count())
        sleep_somewhat(chance, 0.2)
        writer.kill()
        start = time.monotonic()
        with Database(path).alone("tuning"):
            assert time.monotonic() - start < 5.0
