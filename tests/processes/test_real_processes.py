"""Real graphs in processes that fork, are spawned, interrupted or ended: answers are right, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LONGEST_S = 120.0
pytestmark = [pytest.mark.alone, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

HEAD = """
import os, signal, sys, time
import torch, mixbackend
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)).eval()
x = torch.randn(64, 256)
backend = mixbackend.auto({"background": {"cores": 1.0}})
compiled = torch.compile(model, backend=backend)
def call(times=1):
    with torch.no_grad():
        for _ in range(times):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
"""
SERVERS = """
call()
children = []
for number in range(4):
    child = os.fork()
    if not child:
        call(3)
        if number == 0:
            os._exit(7)  # in the middle
        call(200)
        os._exit(0)
    children.append(child)
call(50)
sys.exit([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] != [7, 0, 0, 0])
"""
PARENT_ENDS = """
call()
if not os.fork():
    parent = os.getppid()
    while os.getppid() == parent:
        call()
    call(200)
    open(sys.argv[1], "w").write("right")
    os._exit(0)
call(20)
"""
SPAWNED = """
import multiprocessing
if __name__ == "__main__":
    call()
    processes = [multiprocessing.get_context("spawn").Process(target=call, args=(20,)) for _ in range(2)]
    for process in processes:
        process.start()
    call(20)
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
"""
INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
call()
print("calls", flush=True)
interrupts = 0
end = time.monotonic() + 8.0
while time.monotonic() < end:
    try:
        call()
    except KeyboardInterrupt:
        interrupts += 1
call(20)
print(interrupts, flush=True)
"""
EXITS = """
call()
end = time.monotonic() + 4.0
while time.monotonic() < end:
    call()
sys.exit(3)
"""


def run(code: str, folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    file = folder / f"user_{len(list(folder.glob('user_*')))}.py"
    file.write_text(HEAD + code)
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "caches"), "MARK": str(folder), **variables}
    environment.pop("MIXBACKEND_BACKGROUND", None)
    return subprocess.Popen(
        [sys.executable, str(file), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LONGEST_S)
    return process.returncode, out, err


def left(folder: Path) -> list[str]:
    """Processes that were started for a test and go on, once they had time to end."""
    end = time.monotonic() + 10.0
    mark = f"MARK={folder}".encode()
    while True:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)


@pytest.mark.nightly
@pytest.mark.parametrize("program", [SERVERS, SPAWNED], ids=["forked servers, one ends in the middle", "spawned"])
def test_children_answer_and_leave_nothing(program: str, tmp_path: Path) -> None:
    code, _, err = ended(run(program, tmp_path))
    assert code == 0, err
    assert left(tmp_path) == []


@pytest.mark.nightly
def test_a_forked_child_outlives_its_parent(tmp_path: Path) -> None:
    code, _, err = ended(run(PARENT_ENDS, tmp_path, str(tmp_path / "said")))
    assert code == 0, err
    assert left(tmp_path) == []
    assert (tmp_path / "said").read_text() == "right"


@pytest.mark.nightly
def test_ctrl_c_in_the_middle_of_calls_leaves_a_graph_that_answers(tmp_path: Path) -> None:
    """While nothing, a load or a turn is going on: after each, calls are right."""
    process = run(INTERRUPTED, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "calls\n"
    for _ in range(20):
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 0, err
    assert int(out) > 0 and left(tmp_path) == []


@pytest.mark.nightly
def test_an_exit_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    code, _, err = ended(run(EXITS, tmp_path))
    assert code == 3, err
    assert left(tmp_path) == []


@pytest.mark.nightly
@pytest.mark.parametrize("folder", ["/proc/nobody/writes/here", "/dev/null"])
def test_a_cache_folder_that_cannot_be_written(folder: str, tmp_path: Path) -> None:
    """Root cannot write there either."""
    code, _, err = ended(run("call(20)", tmp_path, XDG_CACHE_HOME=folder))
    assert code == 0, err
    assert left(tmp_path) == []
