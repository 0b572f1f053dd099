"""Calls while challengers are tried in them: results, state, who is let go of and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from forked import Elsewhere, in_fork
from simulated_machine import challenger

from mixbackend.execute.state_restore import Changes
from mixbackend.select.live.arbiter import Arbiter
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.live.live_calls import LiveCalls
from mixbackend.select.live.overlaps import Overlaps
from mixbackend.select.live.preparation import Contender, Preparation
from mixbackend.select.live.selection import Selection
from mixbackend.select.live.standing import Happened
from mixbackend.select.live.steps import Situation

CHANGES = Changes(places=(1,))


@dataclass
class Preparing:
    """Prepares challengers by a function."""

    prepare: Callable[[Challenger], Preparation]


@dataclass
class Prepared:
    """A challenger of a bench, ready when the bench says so."""

    bench: Bench
    name: str
    load_s: float = 0.0

    def ready(self, calls: int, spent_s: float) -> bool:
        return self.bench.is_ready

    def load(self) -> Contender:
        if self.name in self.bench.unbuildable:
            raise MemoryError("no room")
        return self.bench.contender(self.name)


class Bench:
    """An entry whose programs take simulated seconds, count in a tensor, and fail where they are told to."""

    def __init__(
        self,
        seconds: dict[str, float],
        broken: tuple[str, ...] = (),
        unbuildable: tuple[str, ...] = (),
        slow: bool = False,
    ) -> None:
        self.now, self.seconds, self.broken, self.unbuildable = 0.0, seconds, broken, unbuildable
        self.wanted: list[str] = []
        self.is_ready, self.load_s = not slow, 0.0
        self.ran: list[str] = []
        self.released: list[str] = []
        self.situation = Situation()
        names = [name for name in seconds if name != "first"]
        others = [challenger(name, 0.1, build_s=place) for place, name in enumerate(names)]

        self.calls = LiveCalls(
            self.contender("first"),
            Selection(0.1, others, Arbiter(), Overlaps(), 0.0),
            self,
            now=lambda: self.situation,
            clock=lambda: self.now,
        )

    @property
    def news(self) -> list[Happened]:
        return list(self.calls.selection.standing().happened)

    def prepare(self, wanted: Challenger) -> Prepared:
        self.wanted.append(wanted.choice.single)
        return Prepared(self, wanted.choice.single, self.load_s)

    def contender(self, name: str) -> Contender:
        def run(values: list[Any]) -> list[torch.Tensor]:
            assert name not in self.released
            x, counter = values
            values.clear()
            self.ran.append(name)
            self.now += self.seconds[name]
            counter.add_(1)
            if name in self.broken:
                raise RuntimeError(f"{name} broke after it wrote")
            return [x * 2.0]

        return Contender(run, CHANGES, lambda: self.released.append(name))

    def run(self, count: int) -> None:
        counter = torch.zeros((), dtype=torch.int64)
        for number in range(count):
            (result,) = self.calls([torch.tensor(float(number)), counter])
            self.now += 0.001
            assert (result.item(), counter.item(), counter._version) == (2.0 * number, number + 1, number + 1)


def test_the_faster_one_takes_over_and_the_others_are_let_go_of() -> None:
    bench = Bench({"first": 0.1, "slow": 0.2, "quick": 0.08})
    bench.run(400)
    assert bench.calls.selection.settled(0.0) and bench.ran[-1] == "quick"
    assert bench.released == ["slow", "first"]
    assert [(item.change, item.challenger) for item in bench.news] == [("kept", "slow"), ("switched", "quick")]
    assert len(bench.calls.take_news()) == 2 and bench.calls.over
    bench.calls.champion.run([torch.ones(1), torch.zeros((), dtype=torch.int64)])
    assert bench.ran[-1] == "quick"


def test_what_a_challenger_raises_nobody_sees_but_in_one_event() -> None:
    bench = Bench({"first": 0.1, "broken": 0.05, "impossible": 0.05, "quick": 0.08}, ("broken",), ("impossible",))
    bench.run(400)
    assert bench.ran.count("broken") == 1 and "impossible" not in bench.ran and bench.ran[-1] == "quick"
    assert bench.released == ["broken", "first"]
    assert [item.change for item in bench.news] == ["out", "out", "switched"]
    assert "broke after it wrote" in bench.news[0].detail and "no room" in bench.news[1].detail


def test_what_holds_for_good_ends_it() -> None:
    bench = Bench({"first": 0.1, "quick": 0.01})
    bench.situation = Situation(ranks=2)
    bench.run(100)
    assert set(bench.ran) == {"first"} and bench.calls.selection.settled(0.0)


def test_stopped_while_one_is_tried_or_built_nobody_is_tried_any_more() -> None:
    tried = Bench({"first": 0.1, "quick": 0.08})
    while "quick" not in tried.ran:
        tried.run(1)
    tried.situation = Situation(deterministic=True)
    tried.ran.clear()
    tried.run(100)
    assert set(tried.ran) == {"first"} and tried.released == ["quick"]

    late = Bench({"first": 0.1, "quick": 0.08}, slow=True)
    late.run(40)
    assert late.wanted == ["quick"]
    late.situation, late.is_ready = Situation(deterministic=True), True
    late.run(100)
    assert set(late.ran) == {"first"} and late.calls.selection.settled(0.0)


def test_what_takes_longer_to_load_than_calls_have_paid_for_waits() -> None:
    bench = Bench({"first": 0.1, "quick": 0.08})
    bench.load_s = 1.0
    bench.run(190)
    assert set(bench.ran) == {"first"}
    bench.run(200)
    assert bench.ran[-1] == "quick"


def test_a_challenger_that_cannot_be_bound_again_never_runs_again() -> None:
    bench = Bench({"first": 0.1, "quick": 0.08})
    while "quick" not in bench.ran:
        bench.run(1)
    bench.calls.withdraw("weights changed")
    bench.ran.clear()
    bench.run(100)
    assert set(bench.ran) == {"first"} and bench.released == ["quick"] and bench.news[0].change == "out"


def test_programs_that_still_run_are_not_let_go_of() -> None:
    """Real threads and seconds: nobody ever runs what was let go of, and every call is answered once."""
    released: set[str] = set()
    failures: list[str] = []

    def contender(name: str, seconds: float) -> Contender:
        def run(values: list[Any]) -> list[int]:
            (value,) = values
            time.sleep(seconds)
            if name in released:
                failures.append(name)
            return [value]

        return Contender(run, Changes(), lambda: released.add(name))

    names = [challenger(name, 0.01) for name in "ab"]
    selection = Selection(0.01, names, Arbiter(), Overlaps(), 0.0)

    @dataclass
    class Quick:
        name: str
        load_s: float = 0.0

        def ready(self, calls: int, spent_s: float) -> bool:
            return True

        def load(self) -> Contender:
            return contender(self.name, 0.0)

    # A clock that runs a hundred times as fast: calls pay for trying after 20 ms.
    preparer = Preparing(lambda wanted: Quick(wanted.choice.single))
    calls = LiveCalls(contender("first", 0.0005), selection, preparer, clock=lambda: 100.0 * time.perf_counter())

    def work(start: int) -> None:
        for value in range(start, start + 300):
            if list(calls([value])) != [value]:
                failures.append(f"call {value}")

    threads = [threading.Thread(target=work, args=(1000 * place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls._look()
    assert failures == [] and calls.selection.standing().calls == 900


@pytest.mark.nightly
def test_children_of_forks_answer_and_try_while_another_thread_calls() -> None:
    """Of a parent that wants, loads, compares and lets go of challengers all the time."""
    bench = Bench({"first": 0.1, **{f"other-{place}": 0.1 + 0.001 * place for place in range(100)}})

    def call(begun: threading.Event, over: threading.Event) -> None:
        while not over.is_set():
            bench.run(1)
            begun.set()

    def settles() -> bool:
        for _ in range(100):
            bench.run(100)
            if bench.calls.selection.settled(0.0):
                return True
        return False

    with Elsewhere(call):
        assert [in_fork(lambda: bench.run(1) is None) for _ in range(100)] == [0] * 100
    assert in_fork(settles) == 0


def test_a_challenger_that_was_being_built_is_wanted_again_in_the_child() -> None:
    bench = Bench({"first": 0.1, "quick": 0.05}, slow=True)
    bench.run(100)
    assert bench.wanted == ["quick"]

    def tries() -> bool:
        bench.is_ready = True
        bench.run(200)
        return bench.wanted == ["quick", "quick"] and bench.ran[-1] == "quick"

    assert in_fork(tries) == 0
