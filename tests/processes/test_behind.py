"""Work behind a process: how it runs, and that nothing of it is left or in the way, however the process goes on."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mixbackend.host.background import SWITCH, Background, Done, Job
from mixbackend.host.behind_budget import Figures, Limits
from mixbackend.host.builder_lock import BuilderLock
from mixbackend.host.process_tree import usage

HERE = Path(__file__).parent
PAID = Figures(calls=1000, seconds=4000.0)
FREELY = Limits(budget_s=600.0, share=1.0, cores=2)
LONGEST_S = 60.0

pytestmark = [pytest.mark.alone, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

USER = f"""
import json, os, signal, sys, time
from pathlib import Path
from mixbackend.host.background import Background, Job
from mixbackend.host.behind_budget import Figures, Limits
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
folder, how = Path(sys.argv[1]), sys.argv[2]
share = 0.05 if how == "stopped" else 1.0
background = Background(Limits(600.0, share, 2), lambda: folder / "builder.lock")
file = folder / f"running-{{os.getpid()}}"
number = background.submit(Job("behind_work:work", {{"file": str(file)}}, "graph"))
background.paid("graph", Figures(1000, 4000.0))
end = time.monotonic() + {LONGEST_S}
while not file.exists() or not file.read_text():
    background.answer(number)
    assert time.monotonic() < end
    time.sleep(0.01)
time.sleep(0.3 if how == "stopped" else 0.0)
said = json.dumps([background._governor._process.pid, *map(int, file.read_text().split())])
while True:
    try:
        if said:
            print(said, flush=True)
            said = ""
        if how == "exit":
            sys.exit(0)
        if how == "quick":
            os._exit(0)
        background.answer(number)
        time.sleep(0.01)
    except KeyboardInterrupt:
        print(json.dumps(background.standing().begun), flush=True)
"""


@pytest.fixture(autouse=True)
def _work_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Background]]:
    made: list[Background] = []

    def background(limits: Limits | None = FREELY, lock: Path = tmp_path / "builder.lock") -> Background:
        made.append(Background(limits, lambda: lock))
        return made[-1]

    yield background
    for item in made:
        item.close()


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A process with a worker that works; it prints the numbers of governor, worker and the worker's child."""
    started: list[subprocess.Popen[str]] = []

    def run(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USER, str(tmp_path), how]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def did(background: Background, *jobs: Job) -> list[Done]:
    numbers = [background.submit(job) for job in jobs]
    for job in jobs:
        background.paid(job.entry, PAID)
    assert background.settled(LONGEST_S), background.standing()
    return answers(background, *numbers)


def answers(background: Background, *numbers: int | None) -> list[Done]:
    """What came of jobs that are done."""
    found = [background.answer(number) for number in numbers if number is not None]
    return [item for item in found if item is not None]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def left(processes: list[int], seconds: float = 10.0) -> list[int]:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(alive, processes)):
        time.sleep(0.02)
    return [process for process in processes if alive(process)]


def test_workers_run_at_low_priority_in_the_session_of_the_user(make: Any) -> None:
    """A session of its own would be a scheduling group of its own; a group of its own is out of the way of Ctrl-C."""
    (done,) = did(make(), Job("behind_work:where", {}, "graph"))
    assert done.status == "pass", done.detail
    assert done.result["session"] == os.getsid(0)
    assert done.result["group"] == done.result["process"] != os.getpgid(0)
    assert done.result["batch"] and done.result["nice"] == max(10, os.nice(0))


@pytest.mark.nightly
def test_the_user_keeps_the_processor(make: Any, tmp_path: Path) -> None:
    """Both held to one core, which is always busy: nice 10 leaves a tenth to what is behind; a session half."""
    before = os.sched_getaffinity(0)
    background, file = make(), tmp_path / "running"
    number = background.submit(Job("behind_work:work", {"file": str(file), "seconds": 600.0}, "graph"))
    background.paid("graph", PAID)
    end = time.monotonic() + LONGEST_S
    while not file.exists() or not file.read_text():
        background.answer(number)
        assert time.monotonic() < end
        time.sleep(0.01)
    worker = int(file.read_text().split()[0])
    try:
        core = {min(before)}
        os.sched_setaffinity(worker, core)
        os.sched_setaffinity(0, core)
        begun, mine = usage(worker).seconds, time.process_time()
        while time.process_time() - mine < 1.0:
            sum(range(1000))
        assert usage(worker).seconds - begun < 0.15
    finally:
        os.sched_setaffinity(0, before)


def test_nothing_is_started_before_calls_have_paid(make: Any) -> None:
    background = make()
    number = background.submit(Job("behind_work:where", {}, "graph"))
    for figures in (Figures(5, 100.0), Figures(100, 1.0)):
        background.paid("graph", figures)
        assert background.answer(number) is None
    standing = background.standing()
    assert (standing.unpaid, standing.begun) == (1, 0)
    assert background._governor is None
    begin = time.monotonic()
    assert not background.settled(LONGEST_S), "what calls have to pay for is not waited for"
    assert time.monotonic() - begin < 5


def test_what_goes_wrong_costs_its_job_alone(make: Any, tmp_path: Path) -> None:
    jobs = (
        Job("behind_work:die", {}, "graph"),
        Job("behind_work:fail", {}, "graph"),
        Job("behind_work:take_memory", {"megabytes": 1500}, "graph"),
        Job("no_such_module:work", {}, "graph"),
        Job("behind_work:note", {"file": str(tmp_path / "noted")}, "graph"),
    )
    background = make(Limits(600.0, 1.0, 1, memory_bytes=1 << 30))
    crash, failed, memory, unknown, passed = did(background, *jobs)
    assert (crash.status, failed.status, passed.status) == ("crash", "failed", "pass")
    assert "SIGSEGV" in crash.detail and failed.detail == "ValueError: not this one"
    assert memory.status == "out_of_memory"
    assert "no_such_module" in unknown.detail
    assert passed.result == str(tmp_path / "noted")


@pytest.mark.nightly
def test_large_jobs_are_sent_without_waiting(make: Any) -> None:
    """A pipe takes 64 KiB at once, and nobody reads before the other process has started."""
    background = make()
    begin = time.perf_counter()
    number = background.submit(Job("behind_work:length", {"text": "x" * 3_000_000}, "graph"))
    background.paid("graph", PAID)
    assert time.perf_counter() - begin < 0.1
    assert background.settled(LONGEST_S)
    assert [item.result for item in answers(background, number)] == [3_000_000]


def test_asking_never_waits(make: Any, tmp_path: Path) -> None:
    """Not for a worker that works, either."""
    background = make()
    number = background.submit(Job("behind_work:work", {"file": str(tmp_path / "running"), "seconds": 1.0}, "graph"))
    took, done = [], None
    end = time.monotonic() + LONGEST_S
    while done is None:
        begin = time.perf_counter()
        background.paid("graph", PAID)
        done = background.answer(number)
        took.append(time.perf_counter() - begin)
        assert time.monotonic() < end
        time.sleep(0.001)
    took.sort()
    assert took[int(len(took) * 0.99)] < 0.002


def test_ctrl_c_ends_the_call_of_the_user_alone(user: Any) -> None:
    """A terminal sends it to the whole group of the user's process."""
    process = user("interrupted")
    behind = line(process)
    os.killpg(process.pid, signal.SIGINT)
    assert line(process) == 1, "the job goes on"
    assert all(map(alive, behind))


def test_the_end_of_the_process_waits_a_fifth_of_a_second(user: Any) -> None:
    process = user("exit")
    behind = line(process)
    begin = time.monotonic()
    assert process.wait(LONGEST_S) == 0
    assert time.monotonic() - begin < 2.0
    assert left(behind) == []


@pytest.mark.parametrize("how", ["quick", "running", "stopped"])
def test_nothing_outlives_a_process_that_ends_without_a_word(how: str, user: Any) -> None:
    """``os._exit``, or killed; while the worker runs, or while it is stopped because nothing is earned."""
    process = user(how)
    behind = line(process)
    process.kill()
    process.wait()
    assert left(behind) == []


def test_nothing_outlives_a_governor_that_is_killed(user: Any) -> None:
    """The system wakes stopped members of a group that lost its parent, and hangs up."""
    process = user("stopped")
    governor, *behind = line(process)
    os.kill(governor, signal.SIGKILL)
    assert left(behind) == []


def test_a_governor_that_dies_is_an_answer_and_another_takes_over(make: Any, tmp_path: Path) -> None:
    background = make()
    file = tmp_path / "running"
    number = background.submit(Job("behind_work:work", {"file": str(file)}, "graph"))
    background.paid("graph", PAID)
    os.kill(background._governor._process.pid, signal.SIGKILL)
    assert background.settled(LONGEST_S)
    assert [item.status for item in answers(background, number)] == ["crash"]
    (done,) = did(background, Job("behind_work:note", {"file": str(file)}, "graph"))
    assert done.status == "pass"


def test_one_process_builds_for_a_folder_and_the_others_wait(make: Any, user: Any) -> None:
    other = user("running")
    line(other)
    background = make()
    number = background.submit(Job("behind_work:where", {}, "graph"))
    background.paid("graph", PAID)
    end = time.monotonic() + LONGEST_S
    while not background.standing().state and time.monotonic() < end:
        assert background.answer(number) is None
        time.sleep(0.01)
    assert background.standing().state == "another process builds for this cache folder"
    other.kill()
    assert background.settled(LONGEST_S), "the lock ends with its holder"
    assert [item.status for item in answers(background, number)] == ["pass"]


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    one, two = BuilderLock(tmp_path / "lock"), BuilderLock(tmp_path / "lock")
    assert (one.take(), one.take(), two.take()) == ("held", "held", "elsewhere")
    one.release()
    assert two.take() == "held"
    assert BuilderLock(tmp_path / "missing" / "lock").take() == "impossible"


def test_a_folder_that_cannot_be_written_is_told(make: Any, tmp_path: Path) -> None:
    (done,) = did(make(lock=tmp_path / "missing" / "lock"), Job("behind_work:where", {}, "graph"))
    assert (done.status, done.detail) == ("refused", "the cache folder cannot be locked")


def test_with_little_memory_nothing_is_started(make: Any, tmp_path: Path) -> None:
    background = make(Limits(600.0, 1.0, 1, memory_bytes=100 << 20))
    background.submit(Job("behind_work:note", {"file": str(tmp_path / "noted")}, "graph"))
    background.paid("graph", PAID)
    assert not background.settled(1.0)
    assert background.standing().state == "too little memory is free"
    assert not (tmp_path / "noted").exists()


@pytest.mark.parametrize("said", ["off", "0"])
def test_the_environment_switches_it_off(said: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, said)
    background = make()
    assert not background.on
    assert background.submit(Job("behind_work:where", {}, "graph")) is None
    assert background.settled(0.0)


def test_the_configuration_switches_it_off(make: Any) -> None:
    assert make(None).submit(Job("behind_work:where", {}, "graph")) is None


def test_a_job_that_is_forgotten_is_an_answer(make: Any, tmp_path: Path) -> None:
    """Whoever waits for it would wait for ever: after everything was closed, and in the child of a fork."""
    background = make(FREELY)
    number = background.submit(Job("behind_work:work", {"file": str(tmp_path / "running")}, "graph"))
    time.sleep(0.1)
    assert background.answer(number) is None
    child = os.fork()
    if not child:
        time.sleep(0.1)
        answer = background.answer(number)
        os._exit(0 if answer is not None and answer.status == "crash" else 1)
    assert os.waitpid(child, 0)[1] == 0
    background.close()
    time.sleep(0.1)
    assert background.answer(number).status == "crash"


def test_a_fork_has_nothing_behind_and_may_have_its_own(make: Any, tmp_path: Path) -> None:
    """And what is behind the parent goes on, and ends with the parent although the fork lives."""
    background = make()
    number = background.submit(Job("behind_work:work", {"file": str(tmp_path / "running"), "seconds": 1.0}, "graph"))
    background.paid("graph", PAID)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            standing = background.standing()
            (done,) = did(background, Job("behind_work:where", {}, "graph"))
            os.write(writing, json.dumps([standing.begun, standing.unpaid, done.status]).encode())
            background.close()
        os._exit(0)
    os.close(writing)
    assert background.settled(LONGEST_S)
    assert [item.status for item in answers(background, number)] == ["pass"]
    with os.fdopen(reading) as told:
        assert json.loads(told.read()) == [0, 0, "pass"]
    os.waitpid(child, 0)


def test_no_lock_is_held_where_a_process_forks(make: Any, tmp_path: Path) -> None:
    """While another thread asks without end."""
    import threading

    background = make()
    number = background.submit(Job("behind_work:work", {"file": str(tmp_path / "running")}, "graph"))
    background.paid("graph", PAID)
    ending = threading.Event()

    def ask() -> None:
        while not ending.is_set():
            background.standing()
            background._asked_at = 0.0
            background.answer(number)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                background.answer(number)
                background.submit(Job("behind_work:where", {}, "graph"))
                os._exit(0 if background.standing().unpaid == 1 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        ending.set()
        thread.join()


def _in_another(folder: str, told: Any) -> None:
    background = Background(FREELY, lambda: Path(folder) / "builder.lock")
    (done,) = did(background, Job("behind_work:where", {}, "graph"))
    told.put([done.status, background._governor._process.pid, done.result["process"]])  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_of_multiprocessing_have_their_own(method: Any, tmp_path: Path) -> None:
    """They end without ``atexit``; nothing is left."""
    context = multiprocessing.get_context(method)
    told = context.Queue()
    process = context.Process(target=_in_another, args=(str(tmp_path), told))
    process.start()
    status, *behind = told.get(timeout=LONGEST_S)
    process.join(LONGEST_S)
    assert status == "pass" and process.exitcode == 0
    assert left(behind) == []
