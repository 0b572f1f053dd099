"""Builds in processes of their own: what they leave, what becomes of them, and how many there are at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mixbackend.backends.tensorrt import builders, building
from mixbackend.backends.tensorrt.api import Settings
from mixbackend.backends.tensorrt.building import BuildError, RunBuild, build, in_another_process, placeholder
from mixbackend.backends.tensorrt.limits import Limits
from mixbackend.backends.tensorrt.model import Prepared, prepare
from mixbackend.backends.tensorrt.profiles import profiles
from mixbackend.backends.tensorrt.versions import Release

from .conftest import NEWEST, OLDEST, Bench

SETTINGS = Settings(workspace_bytes=1 << 30, level=3, refit=True, tf32=False, halves=False)


def _prepared(release: str = NEWEST, rows: int = 2) -> Prepared:
    values = [torch.randn(rows, 8), torch.randn(4, 8), torch.randn(4)]
    region = Bench().region(lambda x, w, b: torch.relu(torch.addmm(b, x, w.t())), values, constants=(1, 2))
    return prepare(region, Release.of(release))


def _build(prepared: Prepared, run: RunBuild = in_another_process) -> building.Built:
    return build(prepared, profiles(prepared.entrances), SETTINGS, placeholder, "key", run)


def _build_oddly() -> building.Built:
    return _build(_prepared(), partial(in_another_process, worker="odd_worker"))


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch, stand_in: Any, tmp_path: Path) -> Any:
    """Says what the odd worker does: what the folder of timings is called."""
    stand_in()

    def name(wish: str) -> None:
        monkeypatch.setattr(building, "private_cache_folder", lambda _: tmp_path / wish)

    return name


def test_a_process_builds_tells_its_progress_and_keeps_its_timings(stand_in, tmp_path, caplog) -> None:
    stand_in(NEWEST)
    caplog.set_level("INFO", "mixbackend")
    built = _build(_prepared())
    assert built.engine.startswith(b"fake engine") and built.refittable >= {"w0", "w1"}
    assert any("Building Engine" in message for message in caplog.messages), caplog.messages
    (timings,) = tmp_path.glob("timings-*.bin")
    assert len(timings.read_bytes().split()) == 2


def test_a_crash_is_an_exception_that_says_so(stand_in) -> None:
    stand_in(OLDEST, fault="crash")
    with pytest.raises(BuildError, match="ended with signal SIGSEGV"):
        _build(_prepared(OLDEST))


def test_a_process_ends_with_the_one_that_asked(stand_in, tmp_path) -> None:
    stand_in(OLDEST, fault="hang")
    prepared = _prepared(OLDEST)
    building._write(tmp_path, prepared, (), SETTINGS, placeholder, "key")
    command = [sys.executable, "-m", building.WORKER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(f"{tmp_path}\n")
        process.stdin.flush()
        assert "building" in process.stdout.readline()
        process.stdin.close()
        assert process.wait(20) == 1
    finally:
        process.kill()
        process.stdout.close()


def test_time_that_runs_out_is_told_with_the_last_phase(odd, monkeypatch) -> None:
    odd("hangs")
    monkeypatch.setenv("MIXBACKEND_TENSORRT_SECONDS", "1")
    start = time.monotonic()
    with pytest.raises(BuildError, match="no engine within 1 s, at last in: autotuning Conv_3"):
        _build_oddly()
    assert time.monotonic() - start < 5


def test_what_a_process_said_before_it_left_is_told(odd) -> None:
    odd("leaves")
    with pytest.raises(BuildError, match=r"exit code 3: out of device memory"):
        _build_oddly()


def test_a_process_builds_one_engine_after_the_other(odd) -> None:
    odd("works")
    assert _build_oddly().engine == _build_oddly().engine, "they tell their process"


def test_a_process_serves_the_environment_that_it_was_started_in(odd, monkeypatch) -> None:
    odd("works")
    before = _build_oddly().engine
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert _build_oddly().engine != before


@pytest.mark.parametrize("end", ["leaves", "hangs"])
def test_a_process_that_fails_is_not_used_again(odd, monkeypatch, end) -> None:
    odd("works")
    before = _build_oddly().engine
    odd(end)
    monkeypatch.setattr(building, "limits", lambda: Limits(seconds=1))
    with pytest.raises(BuildError):
        _build_oddly()
    odd("works")
    assert _build_oddly().engine != before


def test_a_process_that_died_while_it_was_idle_is_replaced(odd) -> None:
    odd("works")
    before = _build_oddly().engine
    process = int(before.split()[-1])
    os.kill(process, signal.SIGKILL)
    _wait(lambda: not any(item.alive for item in builders._idle if item._process.pid == process))
    assert _build_oddly().engine != before


def test_idle_processes_end_after_a_while(odd, monkeypatch) -> None:
    odd("works")
    monkeypatch.setattr(builders, "IDLE_S", 0.1)
    process = int(_build_oddly().engine.split()[-1])
    _wait(lambda: not Path(f"/proc/{process}").exists())


def _wait(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(("most", "least_seconds"), [("1", 0.9), ("4", 0.0)])
def test_no_more_builds_at_once_than_allowed(odd, monkeypatch, most, least_seconds) -> None:
    odd("works")
    monkeypatch.setenv("MIXBACKEND_TENSORRT_BUILDS", most)
    prepared = _prepared()
    running, seen = [], []

    def counted(folder: Path, seconds: float) -> None:
        running.append(None)
        seen.append(len(running))
        in_another_process(folder, seconds, "odd_worker")
        running.pop()

    start = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        assert all(
            item.engine.startswith(b"engine of ") for item in pool.map(lambda _: _build(prepared, counted), range(3))
        )
    assert max(seen) <= int(most)
    assert time.monotonic() - start >= least_seconds


def test_timings_of_other_places_are_apart() -> None:
    assert building.timings_file("one GPU") != building.timings_file("another GPU")


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_timings_are_joined_and_damaged_ones_measured_again(bench, tmp_path, release) -> None:
    made = bench(release)
    _build(_prepared(release), made.build)
    _build(_prepared(release, rows=3), made.build)
    _build(_prepared(release), made.build)
    (timings,) = tmp_path.glob("timings-*.bin")
    assert len(timings.read_bytes().split()) == 3, "two models"
    timings.write_bytes(b"damaged")
    _build(_prepared(release), made.build)
    assert timings.read_bytes().startswith(b"timings ") and len(timings.read_bytes().split()) == 2


def test_placeholders_differ_and_vectors_are_positive() -> None:
    prepared = _prepared()
    matrix, vector = sorted((placeholder(weight) for weight in prepared.weights), key=lambda item: -item.dim())
    assert matrix.min() < 0 < matrix.max() and vector.min() > 0
    assert matrix.unique().numel() == matrix.numel()
