"""Workers and what they started: nothing stays when the asking process is killed or forgets them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mixbackend.host import process_warden
from mixbackend.host.processes import Worker

WORKER = """
import json, subprocess, sys
sys.stdin.readline()
child = subprocess.Popen(["sleep", "1000"])
print(json.dumps({"status": "pass", "child": child.pid}), flush=True)
sys.stdin.readline()
child.wait()
"""
PARENT = """
import json, os, sys, time
from mixbackend.host.processes import Worker
class Request:
    def to_line(self):
        return "{}"
workers = [Worker(Request(), "worker_with_a_child") for _ in range(2)]
children = [worker.answer(60)["child"] for worker in workers]
if sys.argv[1] == "paused":
    for worker in workers:
        worker.pause()
if sys.argv[1] == "forked" and os.fork() == 0:
    time.sleep(1000)
print(json.dumps([*children, *(worker._process.pid for worker in workers)]), flush=True)
if sys.argv[1] != "forgotten":
    time.sleep(1000)
"""


class Request:
    def to_line(self) -> str:
        return "{}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts an asking process, which prints the numbers of its workers and of their children."""
    (tmp_path / "worker_with_a_child.py").write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    started: list[subprocess.Popen[str]] = []

    def run(how: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT, how],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(processes: list[int], seconds: float = 10.0) -> list[int]:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(alive, processes)):
        time.sleep(0.05)
    return [process for process in processes if alive(process)]


@pytest.mark.parametrize("how", ["running", "paused", "forked"])
def test_nothing_outlives_a_killed_process(how: str, start: Callable[[str], subprocess.Popen[str]]) -> None:
    """Stopped children of a worker, too, and where a fork of the killed process holds its pipes open."""
    parent = start(how)
    assert parent.stdout is not None
    processes = json.loads(parent.stdout.readline())
    assert all(map(alive, processes))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert wait_until_gone(processes) == []


def test_nothing_outlives_a_process_that_forgot_to_close(start: Callable[[str], subprocess.Popen[str]]) -> None:
    parent = start("forgotten")
    assert parent.stdout is not None
    processes = json.loads(parent.stdout.readline())
    assert parent.wait(30) == 0
    assert wait_until_gone(processes) == []


def test_a_worker_that_is_closed_ends_with_its_children(tmp_path: Path) -> None:
    (tmp_path / "worker_with_a_child.py").write_text(WORKER)
    worker = Worker(Request(), "worker_with_a_child", variables={"PYTHONPATH": str(tmp_path)})
    child = worker.answer(60)["child"]
    worker.pause()
    worker.close()
    assert wait_until_gone([child]) == []


def test_the_warden_knows_who_is_left() -> None:
    told, tell = os.pipe()
    kept = os.dup(0)
    os.dup2(told, 0)
    try:
        os.write(tell, b"+11\n+12\n+1")
        os.write(tell, b"3\n-12\n")
        os.close(tell)
        assert process_warden.watch(os.getppid()) == {11, 13}
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(told)
