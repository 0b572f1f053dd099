"""Loading beside calls: in parts, in a thread; forks, the end of the process, and what nobody wants any more."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass

import pytest
import torch

from mixbackend.host import loading as loading_module
from mixbackend.host.loading import TURN_S, BesideCalls, BetweenCalls, GivenUpError, Loading

LONGEST_S = 30.0


@dataclass
class Loaded:
    released: bool = False

    def release(self) -> None:
        self.released = True


def until(condition: threading.Event | Loading[Loaded]) -> None:
    end = time.monotonic() + LONGEST_S
    while not (condition.is_set() if isinstance(condition, threading.Event) else condition.done):
        assert time.monotonic() < end
        time.sleep(0.001)


class Parts:
    """Work whose every part waits until it may go on."""

    def __init__(self, parts: int = 3, error: Exception | None = None) -> None:
        self.parts, self.error = parts, error
        self.begun, self.may, self.done = threading.Event(), threading.Event(), 0
        self.loaded, self.closed = Loaded(), False

    def steps(self) -> Generator[None, None, Loaded]:
        try:
            for _ in range(self.parts):
                self.begun.set()
                assert self.may.wait(LONGEST_S)
                self.done += 1
                yield
            if self.error is not None:
                raise self.error
            return self.loaded
        finally:
            self.closed = True


def test_it_is_done_in_another_thread_and_taken_later() -> None:
    before, threshold, seen = sys.getswitchinterval(), gc.get_threshold(), []

    def steps() -> Generator[None, None, Loaded]:
        seen.append((threading.current_thread().name, sys.getswitchinterval(), gc.get_threshold()[2] > threshold[2]))
        seen.append(torch.is_grad_enabled())
        yield
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return Loaded()

    loading = BesideCalls(steps())
    until(loading)
    loading.join(LONGEST_S)
    assert not loading.take().released and loading.took_s >= 0.02
    assert seen == [("mixbackend-load", pytest.approx(TURN_S), True), False]
    assert (sys.getswitchinterval(), gc.get_threshold()) == (pytest.approx(before), threshold)
    assert torch.is_grad_enabled()


def test_what_it_raises_is_raised_where_it_is_taken() -> None:
    parts = Parts(1, MemoryError("no room"))
    parts.may.set()
    loading = BesideCalls(parts.steps())
    until(loading)
    with pytest.raises(MemoryError, match="no room"):
        loading.take()


def test_given_up_it_ends_after_the_part_that_it_is_in() -> None:
    parts = Parts(3)
    loading = BesideCalls(parts.steps())
    until(parts.begun)
    loading.give_up()
    parts.may.set()
    until(loading)
    assert (parts.done, parts.closed) == (1, True)
    with pytest.raises(GivenUpError):
        loading.take()


def test_given_up_in_its_last_part_or_later_its_value_is_let_go_of() -> None:
    late = Parts(1)
    late.may.set()
    loading = BesideCalls(late.steps())
    until(loading)
    loading.give_up()
    assert late.loaded.released

    value, begun, may = Loaded(), threading.Event(), threading.Event()

    def steps() -> Generator[None, None, Loaded]:
        yield
        begun.set()
        assert may.wait(LONGEST_S)
        return value

    last = BesideCalls(steps())
    until(begun)
    last.give_up()
    may.set()
    last.join(LONGEST_S)
    assert value.released


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_fork_comes_between_two_parts_and_its_child_loads_nothing() -> None:
    lock, going_on, done = threading.Lock(), threading.Event(), []

    def steps() -> Generator[None, None, Loaded]:
        while not going_on.is_set():
            with lock:
                done.append(time.sleep(0.002))
            yield
        return Loaded()

    before, loading = sys.getswitchinterval(), BesideCalls(steps())
    for _ in range(20):
        child = os.fork()
        if child == 0:
            unheld = lock.acquire(blocking=False)
            other = BesideCalls(iter_of(Loaded()))
            other.join(LONGEST_S)
            usual = abs(sys.getswitchinterval() - before) < 1e-9
            os._exit(0 if unheld and usual and loading.done and other.done else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    seen = len(done)
    end = time.monotonic() + LONGEST_S
    while len(done) <= seen:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert not loading.done, "the parent goes on"
    going_on.set()
    until(loading)
    assert not loading.take().released


def iter_of(value: Loaded) -> Generator[None, None, Loaded]:
    yield
    return value


def test_the_end_of_the_process_does_not_wait_for_it() -> None:
    text = """
import time
from mixbackend.host import loading as loading_module
from mixbackend.host.loading import BesideCalls
def steps():
    yield
    time.sleep(600.0)
loading = BesideCalls(steps())
time.sleep(0.1)
print(time.monotonic(), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    ended = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    assert ended - float(done.stdout) < LONGEST_S


def test_calls_wait_for_pythons_lock_a_tenth_of_a_millisecond_at_a_time() -> None:
    """A thread that gives the lock away a hundred times goes on soon while Python is loaded, not after 5 ms each."""
    going_on = threading.Event()

    def steps() -> Generator[None, None, Loaded]:
        while not going_on.is_set():
            sum(range(1000))
            yield
        return Loaded()

    loading, took = BesideCalls(steps()), []
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(100):
            time.sleep(0.0)
        took.append(time.perf_counter() - begin)
    going_on.set()
    until(loading)
    assert sorted(took)[10] < 100 * 0.0025


def test_between_calls_parts_are_done_for_two_milliseconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = 0.0, []
    monkeypatch.setattr(loading_module.time, "perf_counter", lambda: now)

    def steps() -> Generator[None, None, Loaded]:
        nonlocal now
        for seconds in (0.0005, 0.0005, 0.0005, 0.0008, 0.004, 0.0005):
            now += seconds
            done.append(threading.current_thread())
            yield
        return Loaded()

    loading, ended = BetweenCalls(steps()), []
    while not loading.done:
        loading.between_calls()
        ended.append(len(done))
    assert ended == [4, 5, 6] and set(done) == {threading.current_thread()}
    assert loading.took_s == pytest.approx(0.0068) and not loading.take().released


def test_between_calls_what_is_given_up_is_closed_at_once() -> None:
    parts = Parts(3)
    parts.may.set()
    loading = BetweenCalls(parts.steps())
    loading.between_calls()
    loading.give_up()
    assert loading.done and parts.closed
