"""Timing on a machine that is disturbed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from mixbackend.calibrate.timing import time_calls

from .conftest import Clock


def call_that_takes(clock: Clock, durations: Iterator[float]) -> object:
    return lambda: clock.advance(next(durations))


def test_steady_calls(clock: Clock) -> None:
    calls = [call_that_takes(clock, itertools.repeat(seconds)) for seconds in (1e-6, 1e-3, 0.5)]
    timings = time_calls(calls, 0.05, clock=clock)  # type: ignore[arg-type]
    assert [timing.seconds for timing in timings] == pytest.approx([1e-6, 1e-3, 0.5])
    assert all(timing.settled for timing in timings)


def test_warm_up_does_not_count(clock: Clock) -> None:
    durations = itertools.chain([5.0], itertools.repeat(1e-3))
    (timing,) = time_calls([call_that_takes(clock, durations)], 0.05, clock=clock)  # type: ignore[list-item]
    assert timing.seconds == pytest.approx(1e-3)


def test_load_on_half_of_the_calls_does_not_show(clock: Clock) -> None:
    durations = itertools.cycle([1e-3, 12e-3, 1e-3, 7e-3])
    (timing,) = time_calls([call_that_takes(clock, durations)], 0.05, clock=clock)  # type: ignore[list-item]
    assert timing.seconds == pytest.approx(1e-3)
    assert timing.settled


def test_samples_that_never_agree_are_not_settled(clock: Clock) -> None:
    durations = (1e-3 * 1.3**step for step in itertools.count())
    (timing,) = time_calls([call_that_takes(clock, durations)], 0.05, clock=clock)  # type: ignore[list-item]
    assert not timing.settled


def test_slow_calls_are_not_repeated_for_long(clock: Clock) -> None:
    time_calls([call_that_takes(clock, itertools.repeat(2.0))], 0.05, clock=clock)  # type: ignore[list-item]
    assert clock.now <= 2.0 * 6 + 1e-6


def test_the_device_is_waited_for(clock: Clock) -> None:
    (timing,) = time_calls([lambda: None], 0.05, lambda: clock.advance(1e-3), clock)
    assert timing.seconds == pytest.approx(1e-3)
