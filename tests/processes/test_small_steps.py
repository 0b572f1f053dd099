"""Work between two calls: bounded in time, in order, and never twice at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from mixbackend.host.small_steps import LONGEST_S, SmallSteps, Steps


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def steps_of(clock: Clock, seconds: list[float], done: list[float]) -> Steps:
    for one in seconds:
        clock.now += one
        done.append(one)
        yield


def test_a_call_waits_two_milliseconds_at_most() -> None:
    clock, done = Clock(), list[float]()
    steps = SmallSteps(clock=clock)
    steps.add("loading", steps_of(clock, [0.0005] * 40, done))
    calls = 0
    while True:
        before = clock.now
        left = steps.drain()
        assert clock.now - before <= LONGEST_S
        calls += 1
        if not left:
            break
    assert len(done) == 40 and 10 <= calls <= 15
    assert steps.overlong == 0


def test_a_step_that_is_too_long_costs_one_call_and_is_counted() -> None:
    clock, done = Clock(), list[float]()
    steps = SmallSteps(clock=clock)
    steps.add("loading", steps_of(clock, [0.010, 0.0001, 0.0001], done))
    assert steps.drain()
    assert done == [0.010] and steps.overlong == 1 and steps.longest_s == 0.010
    while steps.drain():
        pass
    assert len(done) == 3


def test_work_that_raises_is_told_and_the_rest_goes_on() -> None:
    told: list[str] = []
    done: list[float] = []
    clock = Clock()
    steps = SmallSteps(lambda name, error: told.append(f"{name}: {error}"), clock)

    def failing() -> Steps:
        yield
        raise OSError("gone")

    steps.add("first", failing())
    steps.add("second", steps_of(clock, [0.0001], done))
    while steps.drain():
        pass
    assert told == ["first: gone"] and done == [0.0001]


def test_threads_pass_by_while_another_one_drains() -> None:
    steps = SmallSteps()
    inside, go_on = threading.Event(), threading.Event()
    ran: list[int] = []

    def slow() -> Steps:
        inside.set()
        go_on.wait(10)
        ran.append(threading.get_ident())
        yield

    steps.add("slow", slow())
    thread = threading.Thread(target=steps.drain)
    thread.start()
    assert inside.wait(10)
    assert steps.drain(), "something is left, and this call does not wait for it"
    assert ran == []
    go_on.set()
    thread.join()
    assert len(ran) == 1


def test_a_fork_drops_what_was_waiting() -> None:
    clock, done = Clock(), list[float]()
    steps = SmallSteps(clock=clock)
    steps.add("loading", steps_of(clock, [0.001], done))
    steps.forget()
    assert not steps.drain() and done == []
