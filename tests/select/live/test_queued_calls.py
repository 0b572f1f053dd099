"""Live selection of calls that only queue their work, on a simulated device: what is found, and that nothing waits."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from simulated_machine import challenger

from mixbackend.select.live.allowance import SHARE
from mixbackend.select.live.arbiter import Arbiter
from mixbackend.select.live.call_meter import CallMeter
from mixbackend.select.live.overlaps import Overlaps
from mixbackend.select.live.selection import Selection
from mixbackend.select.live.watches import LapSeconds


@dataclass
class Device:
    """Works through its queue in order; the host may be ``depth`` calls ahead of it.

    Attributes:
        speeds, host: seconds of a call of each contender, on the device and until it returns.
    """

    speeds: list[float]
    host: list[float]
    depth: int
    seed: int = 0
    noise: float = 0.02
    now: float = 100.0
    free_at: float = 0.0
    queue: deque[float] = field(default_factory=deque)
    beyond_s: float = 0.0
    spent_s: float = 0.0
    ran: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        others = [challenger(f"b{number}", seconds) for number, seconds in enumerate(self.speeds) if number]
        self.selection = Selection(self.speeds[0], others, Arbiter(), Overlaps(), self.now, queued=True)

    def call(self) -> None:
        while len(self.queue) >= self.depth:
            self.now = max(self.now, self.queue.popleft())
        if self.selection.trying:
            lap = QueuedLap(self)
            ticket = self.selection.begin(self.now, stream=lap.stream)
            lap.run(ticket.contender)
            self.selection.end(ticket, self.now, lap=lap)
        else:
            lap = QueuedLap(self)
            lap.run(self.selection.champion)
            self.selection.ran(1, lap.device_s, self.now)
        self.now += 1e-5
        wanted = self.selection.wanted(self.now)
        if wanted is not None:
            self.selection.built(wanted)


class QueuedLap:
    def __init__(self, device: Device) -> None:
        self.stream, self.device = 7, device
        self.begun, self.idle = device.now, device.free_at <= device.now

    def run(self, contender: int) -> None:
        device = self.device
        factor = device.random.lognormvariate(0.0, device.noise)
        begin = max(device.free_at, device.now)
        device.now += device.host[contender]
        # Where the device is idle it waits for the host.
        self.end_at = max(begin + device.speeds[contender] * factor, device.now)
        self.device_s, self.host_s = self.end_at - begin, device.host[contender]
        device.free_at = self.end_at
        device.queue.append(self.end_at)
        device.ran.append(contender)
        device.spent_s += self.device_s
        device.beyond_s += max(self.device_s - device.speeds[device.selection.champion] * factor, 0.0)

    def stop(self) -> None: ...

    def seconds(self) -> LapSeconds | None:
        return LapSeconds(self.device_s, self.host_s, self.idle) if self.end_at <= self.device.now else None


def settled(device: Device, most: int = 60_000) -> int:
    for _ in range(most):
        if device.selection.settled(0.0):
            return device.selection.champion
        device.call()
    raise AssertionError(f"not settled after {most} calls: {device.selection.standing()}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("depth", [1, 5, 60])
@pytest.mark.parametrize("call_s", [0.0004, 0.004, 0.05])
def test_five_percent_better_is_found_however_far_the_host_is_ahead(call_s: float, depth: int) -> None:
    for seed in range(4):
        device = Device([call_s, 0.95 * call_s], [1e-4, 1e-4], depth, seed)
        assert settled(device) == 1
        assert device.beyond_s <= SHARE * device.spent_s


@pytest.mark.parametrize("depth", [1, 60])
def test_five_percent_worse_never_wins(depth: int) -> None:
    for seed in range(4):
        device = Device([0.004, 0.0042], [1e-4, 1e-4], depth, seed)
        assert settled(device) == 0
        assert device.beyond_s <= SHARE * device.spent_s


def test_host_seconds_count_where_the_device_waits_for_them() -> None:
    """Two hosts of 2 and 3 ms before a device that has work for 1 ms: the quicker one stays, or wins."""
    assert settled(Device([0.001, 0.0009], [0.002, 0.003], 1)) == 0
    assert settled(Device([0.001, 0.0011], [0.003, 0.002], 1)) == 1


def test_a_challenger_of_unknown_speed_is_waited_for_after_two_calls() -> None:
    device = Device([0.004, 0.0042], [1e-5, 1e-5], 200)
    while 1 not in device.ran:
        device.call()
    for _ in range(20):
        device.call()
    assert device.ran[device.ran.index(1) :].count(1) == 2, "one that is not counted, and one that shows what it takes"


def test_one_call_between_two_looks_is_timed_and_counts_for_the_others() -> None:
    device = Device([0.01, 0.01], [0.001, 0.001], 50)

    class Watch:
        begun = 0

        def begin(self) -> QueuedLap:
            self.begun += 1
            return QueuedLap(device)

    watch = Watch()
    meter = CallMeter(watch)
    lap = meter.lap()
    assert isinstance(lap, QueuedLap)
    lap.run(0)
    meter.count(0.001)
    assert meter.lap() is None
    meter.count(0.001)
    assert meter.taken() is None, "the device is not done"
    device.now = device.free_at
    meter.count(0.001)
    calls, seconds = meter.taken() or (0, 0.0)
    assert (calls, watch.begun) == (3, 1)
    assert seconds == pytest.approx(3 * lap.device_s)
    assert meter.lap() is not None
