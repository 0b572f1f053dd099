"""Calls between which recorded programs are rehearsed: who runs the user's calls, what is found, what is charged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from simulated_machine import challenger

from mixbackend.execute.state_restore import Changes
from mixbackend.host.warm_up import WarmUp
from mixbackend.select.live.allowance import SHARE
from mixbackend.select.live.arbiter import Arbiter
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.live.overlaps import Overlaps
from mixbackend.select.live.preparation import Contender, Preparation
from mixbackend.select.live.rehearsed_calls import LONGEST_S, RehearsedCalls
from mixbackend.select.live.selection import Selection
from mixbackend.select.live.steps import Situation

BLOCK_S, WARM = 0.025, 3


@dataclass
class Prepared:
    """A challenger that is ready at once."""

    bench: Bench
    name: str
    load_s = 0.0

    def ready(self, calls: int, spent_s: float) -> bool:
        return True

    def load(self) -> Contender:
        return self.bench.contender(self.name)


class Bench:
    """An entry with programs that count in a tensor; a stage that takes simulated seconds."""

    def __init__(self, seconds: dict[str, float], broken: tuple[str, ...] = (), warm_up: WarmUp | None = None) -> None:
        self.now, self.seconds, self.broken = 0.0, seconds, broken
        self.users: list[str] = []
        self.turns: list[str] = []
        self.released: list[str] = []
        self.warm: dict[str, int] = {}
        self.ended = 0
        self.prepared: list[str] = []
        self.situation = Situation()
        self.longest_s = self.rehearsing_s = 0.0
        others = [challenger(name, 0.01, build_s=place) for place, name in enumerate(seconds) if place]
        selection = Selection(0.01, others, Arbiter(), Overlaps(), 0.0, queued=warm_up is not None, warm_up=warm_up)
        first = next(iter(seconds))
        self.calls = RehearsedCalls(
            self, self.contender(first), selection, self, None, lambda: self.situation, lambda: self.now
        )

    def contender(self, name: str) -> Contender:
        def run(values: list[Any]) -> Sequence[Any]:
            self.now += self.seconds[name]
            self.users.append(name)
            counter = values[0]
            values.clear()
            counter.add_(1)
            return [counter]

        def apart(values: list[Any]) -> Sequence[Any]:
            if name in self.broken:
                raise RuntimeError("cannot be recorded")
            values[0].add_(1)
            return []

        return Contender(run, Changes((0,)), lambda: self.released.append(name), apart=lambda: apart)

    # --- as a preparer

    def prepare(self, wanted: Challenger) -> Preparation:
        self.prepared.append(str(wanted.choice))
        return Prepared(self, str(wanted.choice))

    # --- as a stage

    def turn(self, number: int, contender: Contender, values: Sequence[Any]) -> float | None:
        name = list(self.seconds)[number]
        kept = values[0].clone()
        assert contender.apart is not None
        try:
            contender.apart()(list(values))
        finally:
            values[0].copy_(kept)
        self.turns.append(name)
        count = self.warm[name] = self.warm.get(name, 0) + 1
        took = self.seconds[name] if count <= WARM else BLOCK_S
        self.now += took
        self.rehearsing_s += took
        self.longest_s = max(self.longest_s, took)
        return None if count <= WARM else self.seconds[name]

    def end(self) -> None:
        self.ended += 1
        self.warm.clear()

    # --- as a user

    def settle(self, most: int = 100_000) -> int:
        counter = torch.zeros(1)
        for number in range(most):
            if self.calls.selection.settled(0.0):
                return number
            (result,) = self.calls([counter])
            assert result is counter and int(counter) == number + 1
            self.calls.take_news()
        raise AssertionError(self.calls.selection.standing())


def test_the_faster_recording_runs_and_no_user_ever_met_a_challenger_on_trial() -> None:
    bench = Bench({"first": 0.01, "b1": 0.009})
    bench.settle()
    assert bench.calls.selection.champion == 1
    switched = bench.users.index("b1")
    assert set(bench.users[switched:]) == {"b1"}
    assert bench.released == ["first"]
    assert bench.ended == 1


def test_the_slower_one_never_runs_a_call_of_the_users() -> None:
    bench = Bench({"first": 0.01, "b1": 0.0105})
    bench.settle()
    assert set(bench.users) == {"first"}
    assert (bench.released, bench.ended) == (["b1"], 1)
    assert bench.rehearsing_s <= SHARE * bench.now + BLOCK_S
    assert bench.longest_s <= LONGEST_S


def test_in_a_warm_up_the_next_ones_are_prepared_meanwhile() -> None:
    speeds = {"first": 0.01, "b1": 0.0105, "b2": 0.011, "b3": 0.009, "b4": 0.012}
    bench = Bench(speeds, warm_up=(warm_up := WarmUp()))
    counter = torch.zeros(1)
    bench.calls([counter])
    assert not bench.prepared, "its calls have paid for nothing"
    with warm_up.opened():
        while not bench.prepared:
            bench.calls([counter])
        assert bench.prepared == ["b1", "b2", "b3"]
        while not bench.calls.selection.settled(0.0):
            bench.calls([counter])
            bench.calls.take_news()
    assert bench.prepared == ["b1", "b2", "b3", "b4"] and bench.calls.selection.champion == 3
    warmed = Bench(speeds)
    warmed.settle()
    assert warmed.prepared == bench.prepared, "one after the other, each once"


def test_what_is_stopped_lets_go_of_its_recordings_at_the_next_call() -> None:
    bench = Bench({"first": 0.01, "b1": 0.009})
    counter = torch.zeros(1)
    while not bench.turns:
        bench.calls([counter])
    bench.calls.selection.stop()
    bench.calls([counter])
    assert (bench.released, bench.ended, bench.calls.selection.champion) == (["b1"], 1, 0)


def test_what_cannot_be_rehearsed_is_out() -> None:
    bench = Bench({"first": 0.01, "b1": 0.005, "b2": 0.009}, broken=("b1",))
    bench.settle()
    assert bench.calls.selection.champion == 2
    happened = bench.calls.selection.standing().happened
    assert (happened[0].change, happened[0].detail) == ("out", "RuntimeError: cannot be recorded")


def test_where_the_plan_itself_cannot_be_rehearsed_nothing_is_tried() -> None:
    bench = Bench({"first": 0.01, "b1": 0.005}, broken=("first",))
    bench.settle()
    assert set(bench.users) == {"first"}
    assert bench.released == ["b1"]


def test_nothing_is_rehearsed_while_the_user_records_or_in_a_backward() -> None:
    for situation in (Situation(capturing=True), Situation(in_backward=True)):
        bench = Bench({"first": 0.01, "b1": 0.009})
        while not bench.calls.selection.trying:
            bench.calls([torch.zeros(1)])
        bench.situation, before = situation, len(bench.turns)
        for _ in range(200):
            bench.calls([torch.zeros(1)])
        assert len(bench.turns) == before
        bench.situation = Situation()
        bench.settle()
        assert bench.calls.selection.champion == 1
