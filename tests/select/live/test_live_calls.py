"""Calls while challengers are tried in them: results, state, who is let go of and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from simulated_machine import challenger

from mixbackend.execute.state_restore import Changes
from mixbackend.select.live.arbiter import Arbiter
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.live.live_calls import Built, Contender, LiveCalls
from mixbackend.select.live.overlaps import Overlaps
from mixbackend.select.live.selection import Selection
from mixbackend.select.live.standing import Happened
from mixbackend.select.live.steps import Situation

CHANGES = Changes(places=(1,))


class Bench:
    """An entry whose programs take simulated seconds, count in a tensor, and fail where they are told to."""

    def __init__(
        self,
        seconds: dict[str, float],
        broken: tuple[str, ...] = (),
        unbuildable: tuple[str, ...] = (),
        build: Callable[[Challenger, Built], None] | None = None,
    ) -> None:
        self.now, self.seconds, self.broken, self.unbuildable = 0.0, seconds, broken, unbuildable
        self.ran: list[str] = []
        self.released: list[str] = []
        self.news: list[Happened] = []
        self.situation = Situation()
        names = [name for name in seconds if name != "first"]
        others = [challenger(name, 0.1, build_s=place) for place, name in enumerate(names)]

        def selection(tell: Callable[[Happened], None]) -> Selection:
            return Selection(0.1, others, Arbiter(), Overlaps(), 0.0, tell)

        self.calls = LiveCalls(
            self.contender("first"),
            selection,
            build or self.build,
            self.news.append,
            lambda: self.situation,
            lambda: self.now,
        )

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

    def build(self, wanted: Challenger, built: Built) -> None:
        name = wanted.choice.single or ""
        built(MemoryError("no room") if name in self.unbuildable else self.contender(name))

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

    waiting: list[tuple[Challenger, Built]] = []
    late = Bench({"first": 0.1, "quick": 0.08}, build=lambda wanted, built: waiting.append((wanted, built)))
    late.run(40)
    ((wanted, built),) = waiting
    late.situation = Situation(deterministic=True)
    late.run(1)
    built(late.contender("quick"))
    late.run(100)
    assert set(late.ran) == {"first"} and late.released == ["quick"] and wanted.choice.single == "quick"


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

    def selection(tell: Callable[[Happened], None]) -> Selection:
        return Selection(0.01, [challenger(name, 0.01) for name in "ab"], Arbiter(), Overlaps(), 0.0, tell)

    def build(wanted: Challenger, built: Built) -> None:
        found = contender(str(wanted.choice.single), 0.0)
        threading.Thread(target=lambda: built(found)).start()

    # A clock that runs a hundred times as fast: calls pay for trying after 20 ms.
    calls = LiveCalls(contender("first", 0.0005), selection, build, clock=lambda: 100.0 * time.perf_counter())

    def work(start: int) -> None:
        for value in range(start, start + 300):
            if list(calls([value])) != [value]:
                failures.append(f"call {value}")

    threads = [threading.Thread(target=work, args=(1000 * place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and calls.selection.standing().calls == 900
