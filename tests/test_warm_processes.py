"""Warm processes are processes: what they write, how they end, what they find, and that killing one ends it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from warm_processes import WarmProcesses

SAYS = """
import atexit, json, os, sys, threading
atexit.register(lambda: print("the end", flush=True))
print(json.dumps([sys.argv, os.getcwd(), os.environ.get("MINE"), threading.active_count(), "torch" in sys.modules]))
print("wrong", file=sys.stderr)
sys.exit(3)
"""


def test_a_program_runs_to_its_end(warm: WarmProcesses, tmp_path: Path) -> None:
    done = warm.run(SAYS, "one", "two", env={**os.environ, "MINE": "here"}, cwd=tmp_path)
    assert done.returncode == 3 and done.stderr == "wrong\n"
    said, end = done.stdout.splitlines()
    assert said == f'[["-c", "one", "two"], "{tmp_path}", "here", 1, true]' and end == "the end"


def test_an_error_is_told_as_python_tells_it(warm: WarmProcesses) -> None:
    done = warm.run("def fail():\n    raise ValueError('no')\nfail()")
    assert done.returncode == 1 and "ValueError: no" in done.stderr


def test_one_is_killed_and_others_go_on(warm: WarmProcesses) -> None:
    program = "import sys, time\nprint('begun', flush=True)\ntime.sleep(float(sys.argv[1]))"
    doomed, other = warm.start(program, "600"), warm.start(program, "0.1")
    assert doomed.stdout.readline() == "begun\n" and doomed.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        doomed.wait(timeout=0.01)
    doomed.kill()
    begin = time.monotonic()
    assert doomed.wait() == -signal.SIGKILL and time.monotonic() - begin < 60
    assert other.communicate()[0] == "begun\n" and other.returncode == 0
