"""What work behind may take, simulated: no clock, no process, no lock of a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mixbackend.host.background import SWITCH, Background, Job
from mixbackend.host.behind_budget import Account, Figures, Limits
from mixbackend.host.behind_governor import Governor
from mixbackend.host.behind_orders import ELSEWHERE, LITTLE_MEMORY, UNPAID, Answer
from mixbackend.host.builder_lock import Taken
from mixbackend.host.free_memory import free_bytes
from mixbackend.host.process_tree import Usage

GIB = 1 << 30
TICK_S = 0.05


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Worker:
    """Uses all of one core while it is not stopped; done after so many processor seconds."""

    clock: Clock
    needs_s: float
    group: int = 7
    held: int = GIB
    told: bool = True
    used_s: float = 0.0
    stopped: bool = False
    ended: bool = False
    jobs: list[str] = field(default_factory=list)
    died: str = ""

    def work(self, seconds: float) -> None:
        self.used_s += 0.0 if self.stopped or not self.jobs or self.ended else seconds

    def give(self, work: str, data: Any) -> None:
        self.jobs.append(work)

    def answer(self) -> Answer | None:
        if self.died:
            return {"status": self.died, "detail": ""}
        if self.used_s < self.needs_s * len(self.jobs) or not self.jobs:
            return None
        self.needs_s = float("inf")
        return {"status": "pass", "result": 1}

    def usage(self) -> Usage:
        return Usage(self.used_s, self.held, self.told)

    def pause(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False

    def end(self) -> None:
        self.ended = True


@dataclass
class Lock:
    taken: Taken = "held"
    released: int = 0

    def take(self) -> Taken:
        return self.taken

    def release(self) -> None:
        self.released += 1


class Scene:
    """A governor with workers that need so many seconds a job, on so many cores; a process keeps some of them busy."""

    def __init__(
        self, limits: Limits, needs_s: float, free: int = 16 * GIB, busy: float | None = None, **worker: Any
    ) -> None:
        self.clock, self.lock = Clock(), Lock()
        self.workers: list[Worker] = []
        self.bytes: list[int] = []
        self.compilers: list[int] = []

        def start(memory_bytes: int, compilers: int) -> Worker:
            self.bytes.append(memory_bytes)
            self.compilers.append(compilers)
            self.workers.append(Worker(self.clock, needs_s, **worker))
            return self.workers[-1]

        def used_so_far() -> float | None:
            return None if busy is None else busy * self.clock.now

        self.governor = Governor(limits, self.lock, start, lambda: free, used_so_far, self.clock)
        self.told: list[Answer] = []

    def order(self, job: int, entry: str = "graph", allowance_s: float = 1e9) -> None:
        self.governor.hear({"allow": entry, "seconds": allowance_s})
        self.governor.hear({"job": job, "entry": entry, "work": "module:work", "data": {}})

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.told += self.governor.look()
            self.clock.now += TICK_S
            for worker in self.workers:
                worker.work(TICK_S)

    @property
    def used_s(self) -> float:
        return sum(worker.used_s for worker in self.workers)

    @property
    def answers(self) -> dict[int, str]:
        return {item["job"]: item["status"] for item in self.told if "job" in item}

    @property
    def states(self) -> list[str]:
        return [item["state"] for item in self.told if "state" in item]


TEN_PERCENT = Limits(budget_s=120.0, share=0.1, cores=2)


def test_an_entry_pays_before_anything_is_done() -> None:
    assert not Figures(calls=19, seconds=100.0).paid
    assert not Figures(calls=1000, seconds=1.9).paid
    assert Figures(calls=1000, seconds=1.9).allowance_s == 0.0
    assert Figures(calls=20, seconds=2.0).paid
    assert Figures(calls=20, seconds=2.0).allowance_s == pytest.approx(0.5)


@pytest.mark.parametrize("cores", [1, 2, 16, 64])
def test_all_work_stays_under_a_tenth_of_the_cores(cores: int) -> None:
    """In every stretch of time, but for what one look comes too late and what is kept."""
    scene = Scene(Limits(budget_s=1e9, share=0.1, cores=cores), needs_s=1e9, free=64 * GIB)
    for job in range(20):
        scene.order(job)
    before: list[float] = []
    for _ in range(60):
        before.append(scene.used_s)
        scene.run(1.0)
    late = 0.5 + TICK_S * len(scene.workers)
    for first in range(0, 60, 7):
        for last in range(first + 1, 60):
            assert before[last] - before[first] <= 0.1 * cores * (last - first) + late
    workers = max(1, min(8, int(0.1 * cores)))
    assert len(scene.workers) == workers
    assert scene.used_s >= 0.9 * min(workers, 0.1 * cores) * 60 - 1


def test_what_was_not_used_is_not_kept() -> None:
    scene = Scene(TEN_PERCENT, needs_s=1e9)
    scene.run(3600)
    scene.order(1)
    scene.run(10)
    assert scene.used_s <= 0.1 * 2 * 10 + 0.5 + 2 * TICK_S


def test_an_entry_gets_no_more_than_a_quarter_of_its_calls() -> None:
    scene = Scene(Limits(120.0, 1.0, 2), needs_s=3.0)
    scene.order(1, allowance_s=Figures(40, 4.0).allowance_s)
    scene.run(30)
    assert scene.used_s <= 1.0 + TICK_S and scene.workers[0].stopped
    assert scene.states[-1] == UNPAID
    scene.governor.hear({"allow": "graph", "seconds": Figures(200, 20.0).allowance_s})
    scene.run(30)
    assert scene.answers == {1: "pass"} and scene.states[-1] == ""


@pytest.mark.parametrize(("busy", "allowance_s", "most_s"), [(2.0, 0.0, 0.0), (2.0, 1e9, 12.0), (1.0, 0.0, 30.0)])
def test_half_of_what_the_process_leaves_idle_is_free(busy: float, allowance_s: float, most_s: float) -> None:
    scene = Scene(TEN_PERCENT, needs_s=1e9, busy=busy)
    scene.order(1, allowance_s=allowance_s)
    scene.run(60)
    assert most_s - 2 * TICK_S <= scene.used_s <= most_s + 0.5 + 2 * TICK_S
    assert (scene.states[-1:] == [UNPAID]) is (most_s == 0.0)


def test_an_idle_process_uses_up_its_seconds_too() -> None:
    scene = Scene(TEN_PERCENT, needs_s=1e9, busy=0.0)
    scene.order(1, allowance_s=0.0)
    scene.run(200)
    assert scene.answers == {1: "budget"} and scene.used_s <= 120.0 + 2 * TICK_S


def test_the_process_has_so_many_seconds_in_all() -> None:
    scene = Scene(Limits(2.0, 1.0, 2), needs_s=1e9)
    for job in (1, 2, 3):
        scene.order(job)
    scene.run(10)
    assert set(scene.answers.values()) == {"budget"} and len(scene.answers) == 3
    assert scene.used_s <= 2.0 + 2 * TICK_S * len(scene.workers)


def test_one_job_alone_compiles_as_much_as_all_workers_may() -> None:
    scene = Scene(Limits(120.0, 0.1, 16), needs_s=1.0, free=64 * GIB)
    scene.order(1)
    scene.run(1)
    assert scene.compilers == [8]
    scene = Scene(Limits(120.0, 0.1, 16), needs_s=1.0, free=8 * GIB)
    scene.order(1)
    scene.run(1)
    assert scene.compilers == [2], "a GiB for each"


def test_what_a_warm_up_uses_counts_for_no_budget() -> None:
    scene = Scene(TEN_PERCENT.in_warm_up, needs_s=130.0)
    scene.order(1, allowance_s=0.0)
    scene.run(140)
    assert scene.answers == {1: "pass"} and scene.used_s >= 130.0
    scene.governor.hear({"limits": asdict(TEN_PERCENT)})
    scene.order(2, allowance_s=0.0)
    scene.run(2)
    assert scene.states[-1] == UNPAID, "its calls pay again"
    scene.governor.hear({"allow": "graph", "seconds": 1e9})
    scene.run(1000)
    assert scene.answers == {1: "pass", 2: "budget"}
    assert scene.used_s <= 130.0 + 120.0 + 1.0


def test_where_the_system_tells_nothing_time_counts_as_used() -> None:
    scene = Scene(TEN_PERCENT, needs_s=1e9, told=False)
    scene.order(1)
    scene.run(60)
    assert scene.used_s <= 0.1 * 2 * 60 + 0.5 + TICK_S


def test_workers_hold_a_quarter_of_what_is_free_together() -> None:
    scene = Scene(Limits(120.0, 1.0, 4), needs_s=1.0, free=32 * GIB)
    for job in range(4):
        scene.order(job)
    scene.run(1)
    assert len(scene.bytes) == 4 and sum(scene.bytes) <= 8 * GIB
    assert scene.compilers == [1] * 4
    scene = Scene(Limits(120.0, 0.5, 2, memory_bytes=GIB), needs_s=1.0, free=32 * GIB, held=2 * GIB)
    scene.order(1)
    scene.run(1)
    assert scene.bytes == [GIB] and scene.compilers == [1]
    assert scene.answers == {1: "out_of_memory"} and scene.workers[0].ended


def test_with_little_memory_jobs_wait() -> None:
    scene = Scene(TEN_PERCENT, needs_s=1.0, free=GIB)
    scene.order(1)
    scene.run(5)
    assert scene.workers == [] and scene.states == [LITTLE_MEMORY] and scene.answers == {}


def test_another_builder_is_waited_for() -> None:
    scene = Scene(TEN_PERCENT, needs_s=0.1)
    scene.lock.taken = "elsewhere"
    scene.order(1)
    scene.run(2)
    assert scene.workers == [] and scene.states == [ELSEWHERE]
    scene.lock.taken = "held"
    scene.run(5)
    assert scene.answers == {1: "pass"} and scene.states[-1] == "" and scene.lock.released


def test_a_folder_that_cannot_be_locked_is_an_answer() -> None:
    scene = Scene(TEN_PERCENT, needs_s=1.0)
    scene.lock.taken = "impossible"
    scene.order(1)
    scene.run(1)
    assert scene.answers == {1: "refused"} and scene.workers == []


def test_a_worker_that_dies_costs_its_job_alone() -> None:
    scene = Scene(Limits(120.0, 1.0, 1), needs_s=1.0)
    scene.order(1)
    scene.order(2)
    scene.run(0.2)
    scene.workers[0].died = "crash"
    scene.run(5)
    assert scene.answers == {1: "crash", 2: "pass"} and scene.workers[0].ended


def test_a_job_that_hangs_is_ended_and_a_worker_without_work_too() -> None:
    scene = Scene(Limits(1e9, 1.0, 1), needs_s=1e9)
    scene.order(1)
    scene.run(601)
    assert scene.answers == {1: "timeout"}
    scene = Scene(Limits(1e9, 1.0, 1), needs_s=1.0)
    scene.order(1)
    scene.run(20)
    assert scene.answers == {1: "pass"} and scene.workers[0].ended


def test_used_seconds_are_earned_back_first() -> None:
    account = Account(TEN_PERCENT, now=0.0)
    account.allow("graph", 100.0)
    account.use("graph", 1.0)
    account.pass_until(4.9)
    assert not account.may_go_on("graph") and account.paid("graph")
    account.pass_until(5.1)
    assert account.may_go_on("graph") and not account.paid("other") and not account.may_go_on("other")


def test_free_memory_is_what_the_control_group_leaves(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert free_bytes(tmp_path) == 0
    write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    assert free_bytes(tmp_path) == 8_000_000 * 1024
    write("proc/self/cgroup", "0::/job\n")
    write("sys/fs/cgroup/memory.max", "max\n")
    write("sys/fs/cgroup/memory.current", "5\n")
    assert free_bytes(tmp_path) == 8_000_000 * 1024
    write("sys/fs/cgroup/job/memory.max", "3000\n")
    write("sys/fs/cgroup/job/memory.current", "1000\n")
    assert free_bytes(tmp_path) == 2000
    assert free_bytes() > 0


class Pipe:
    """A governor that does every job at once."""

    def __init__(self) -> None:
        self.said: list[Answer] = []
        self.ended = False

    def tell(self, message: Any) -> None:
        if "job" in message:
            self.said.append({"job": message["job"], "status": "pass", "result": 1})

    def hear(self) -> list[Answer]:
        said, self.said = self.said, []
        return said

    def end(self) -> None:
        self.ended = True

    def leave(self) -> None:
        pass


def test_one_governor_keeps_the_account_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one would begin with the whole budget."""
    monkeypatch.delenv(SWITCH, raising=False)
    clock, started = Clock(), list[Pipe]()

    def start(limits: Limits, lock: Path) -> Pipe:
        started.append(Pipe())
        return started[-1]

    background = Background(TEN_PERCENT, lambda: tmp_path / "lock", start, clock)
    waiting = background.submit(Job("module:work", {}, "later"))
    assert waiting is not None
    for _ in range(3):
        number = background.submit(Job("module:work", {}, "graph"))
        background.paid("graph", Figures(100, 400.0))
        clock.now += 1.0
        done = background.answer(number) if number is not None else None
        assert done is not None and done.status == "pass"
        for _ in range(30):
            clock.now += 1.0
            assert background.answer(waiting) is None
    assert len(started) == 1 and not started[0].ended


def test_what_governors_used_is_told_after_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a warm-up, which ends what is behind."""
    monkeypatch.delenv(SWITCH, raising=False)
    clock, pipe = Clock(), Pipe()
    background = Background(TEN_PERCENT, lambda: tmp_path / "lock", lambda limits, lock: pipe, clock)
    for told in (2.5, 5.0):
        number = background.submit(Job("module:work", {}, "graph"))
        assert number is not None
        background.paid("graph", Figures(100, 400.0))
        pipe.said.append({"used_s": 2.5})
        clock.now += 1.0
        assert background.answer(number) is not None
        background.close()
        assert background.standing().used_s == told
