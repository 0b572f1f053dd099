"""How the threads of a call go through its kernels: order, waiting asleep, shares of threads that do not come."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mixbackend.backends.codegen.targets import cpp
from mixbackend.backends.common.compiler import find_compiler

HERE = Path(__file__).parent
HEADERS = Path(cpp.__file__).parent
Harness = Callable[..., str]


def _compiled(folder: Path, *options: str) -> Path | None:
    program = folder / "harness"
    command = [*find_compiler().command, "-std=gnu++17", "-O2", "-g", "-pthread", *options, f"-I{HEADERS}"]
    done = subprocess.run(
        [*command, str(HERE / "phases_harness.cpp"), "-o", str(program)], capture_output=True, text=True
    )
    assert options or done.returncode == 0, done.stderr
    return program if done.returncode == 0 else None


def _run(program: Path, *words: object, cores: set[int] | None = None) -> subprocess.CompletedProcess[str]:
    narrow = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    command = [str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=narrow)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = _compiled(tmp_path_factory.mktemp("phases"))
    assert program is not None
    return program


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("rests", [0, 1])
def test_every_share_is_computed_once_after_the_phases_before(harness: Path, threads: int, rests: int) -> None:
    """Sixteen threads are more than most machines have cores; some shares rest for a millisecond, as if put aside."""
    assert _run(harness, "many", threads, 4000, rests).stdout == "right\n"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_that_have_one_core_get_along(harness: Path, threads: int) -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("the cores of a process cannot be chosen here")
    core = min(os.sched_getaffinity(0))
    assert _run(harness, "many", threads, 4000, 1, cores={core}).stdout == "right\n"


def test_who_waits_long_is_asleep(harness: Path) -> None:
    """A thread needs 200 ms for a share, and one needs 200 more until it leaves."""
    asleep, waiting, leaving = _run(harness, "late", 200).stdout.split()
    assert asleep == "1"
    assert float(waiting) < 20 and float(leaving) < 20, "a thread that waited was at work"


def test_shares_of_a_thread_that_does_not_come_are_taken_over(harness: Path) -> None:
    assert _run(harness, "absent", 100).stdout == "200 0\n"


def test_a_sanitizer_finds_no_races(tmp_path: Path) -> None:
    program = _compiled(tmp_path, "-fsanitize=thread")
    if program is None or "FATAL: ThreadSanitizer" in _run(program, "absent", 1).stderr:
        pytest.skip("there is no sanitizer of threads that runs here")
    for rests in (0, 1):
        done = _run(program, "many", 4, 1000, rests)
        assert done.returncode == 0 and done.stdout == "right\n", done.stderr[:4000]
