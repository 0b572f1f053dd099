"""``kill -9`` in the middle of tuning, and several processes that tune at once: nothing is lost, wrong or left behind.

``MIXBACKEND_NIGHTLY=1`` kills 50 times instead of a few, and has eight processes at once instead of two.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from mixbackend.cost.switches import SWITCH
from mixbackend.storage import ArtifactStore, Database, StorageEvent
from mixbackend.storage.eviction import left_by_races

NIGHTLY = os.environ.get("MIXBACKEND_NIGHTLY") == "1"
KILLS = 50 if NIGHTLY else 1
TOGETHER = 8 if NIGHTLY else 2
SCRIPT = str(Path(__file__).parent / "tune_small_model.py")
MARK = "MIXBACKEND_TEST_MARK"


def start(folder: Path, mark: str) -> subprocess.Popen[str]:
    """A process that tunes the small model; it and all that it starts carry a mark in their environment."""
    settings = {"backends": ["onednn", "eager"], "cache": {"dir": str(folder)}, "budget_s": 60}
    environment = {**os.environ, SWITCH: "0", MARK: mark}
    return subprocess.Popen(
        [sys.executable, SCRIPT, json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def answer_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0
    answers: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
    return answers


def marked(mark: str) -> list[str]:
    """Command lines of the processes that carry a mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def wait_until_gone(mark: str, seconds: float = 15.0) -> list[str]:
    end = time.monotonic() + seconds
    while time.monotonic() < end and marked(mark):
        time.sleep(0.1)
    return marked(mark)


def check_what_is_left(folder: Path) -> None:
    """Whatever the moment: a sound database, whole artifacts, and the values of one race at most."""
    events: list[StorageEvent] = []
    store = ArtifactStore(folder, report=events.append)
    assert all(store.read(artifact.key) is not None for artifact in store.artifacts())
    for file in folder.glob("mixbackend-*.sqlite"):
        with sqlite3.connect(file) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert events == [] and not list(folder.glob("*set-aside*"))
    assert len(left_by_races(folder)) <= 1


def chosen(answers: list[dict[str, Any]]) -> list[str]:
    return [graph["tuning"]["chosen"] for answer in answers for graph in answer["report"]["graphs"]]


@pytest.mark.nightly
def test_a_killed_run_leaves_nothing_wrong_and_the_next_one_works(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    chance = random.SystemRandom()
    decided: dict[str, Any] = {}
    for _ in range(KILLS):
        mark = uuid.uuid4().hex
        process = start(folder, mark)
        # The first seconds are imports: what is of interest comes after them.
        moment = 2.0 + 10.0 * chance.random()
        try:
            process.communicate(timeout=moment)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        assert wait_until_gone(mark) == [], f"killed after {moment:.3f} s"
        check_what_is_left(folder)
        if NIGHTLY:
            decided = keep_some(folder, decided, chance)
    answers = answer_of(start(folder, "last"))
    assert all(answer["error"] < 1e-5 for answer in answers)
    assert len(set(chosen(answers))) == 1
    assert not left_by_races(folder)
    (row,) = Database.open(folder).rows("decisions")
    assert row["device"] and "onednn" in json.loads(row["fingerprints"])


def keep_some(folder: Path, decided: dict[str, Any], chance: random.SystemRandom) -> dict[str, Any]:
    """What had been decided is still so; then, most times, it is forgotten, so that the next run measures again."""
    database = Database.open(folder)
    rows = {row["subject"]: row for row in database.rows("decisions")}
    assert all(rows.get(subject) == row for subject, row in decided.items())
    finished = {subject: row for subject, row in rows.items() if row["device"]}
    if chance.random() < 0.7:
        for subject in finished:
            database.forget_decision(subject)
        finished = {}
    database.close()
    return finished


@pytest.mark.nightly
def test_processes_that_tune_at_once_agree(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    mark = uuid.uuid4().hex
    answers = [answer_of(process) for process in [start(folder, mark) for _ in range(TOGETHER)]]
    assert len({choice for answer in answers for choice in chosen(answer)}) == 1
    assert all(part["error"] < 1e-5 for answer in answers for part in answer)
    assert len(Database.open(folder).rows("decisions")) == 1
    check_what_is_left(folder)
    assert not left_by_races(folder) and wait_until_gone(mark) == []
