"""Calls before what is timed: all mixtures are warmed up, or a time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mixbackend.benchmarks.one_model.protocol import Request, request_from_line
from mixbackend.benchmarks.one_model.settle import settle
from mixbackend.commands.demo import SETTLE_S, WORKER_SECONDS


class After:
    """A mixture that settles after so many calls."""

    def __init__(self, calls: float) -> None:
        self.left = calls

    def called(self) -> None:
        self.left -= 1

    def settled(self) -> bool:
        return self.left <= 0

    def warm_up(self, call: Callable[[], Any], longest_s: float) -> bool:
        end = time.monotonic() + longest_s
        while not self.settled() and time.monotonic() < end:
            call()
        return self.settled()


def test_it_calls_until_everything_is_settled() -> None:
    mixture = After(3)
    assert settle(mixture.called, 60.0, lambda: [mixture]) is not None and mixture.left == 0


def test_it_gives_up_when_the_time_is_over() -> None:
    never = After(float("inf"))
    assert settle(never.called, 0.01, lambda: [never]) is None


def test_the_demo_waits_for_less_than_its_workers_may_take() -> None:
    request = Request("speed", "resnet18", "inference", settle_s=SETTLE_S)
    assert request_from_line(request.to_line()).settle_s == SETTLE_S < WORKER_SECONDS / 2
