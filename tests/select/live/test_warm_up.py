"""A warm-up: calls that nobody waits for pay for nothing, and find the same winner in far fewer of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simulated_machine import Machine

from mixbackend.host.background import SWITCH, Background, Job
from mixbackend.host.behind_budget import Figures, Limits
from mixbackend.host.warm_up import WarmUp
from mixbackend.select.live.allowance import LEAST_S

TEN_PERCENT = Limits(120.0, 0.1, 20)


def test_in_a_warm_up_trying_is_not_paid_for() -> None:
    speeds, estimates = [0.1, 0.14, 0.08], [0.1, 0.1, 0.1]
    paying, free = Machine(speeds, estimates=estimates), Machine(speeds, estimates=estimates, warm_up=WarmUp())
    assert paying.settle() == 2
    with free.warm_up.opened():
        assert free.settle() == 2
    assert len(free.ran) < 0.5 * len(paying.ran)


def test_one_far_slower_costs_one_turn_in_a_warm_up_too() -> None:
    machine = Machine([0.1, 2.0, 0.09], estimates=[0.1, 0.09, 0.1], warm_up=WarmUp())
    with machine.warm_up.opened():
        assert machine.settle() == 2
    assert machine.ran.count(1) == 2


def test_after_a_warm_up_trying_is_paid_for_again() -> None:
    machine = Machine([0.1, 0.14], warm_up=WarmUp())
    with machine.warm_up.opened():
        machine.call()
        machine.call()
    for _ in range(15):
        machine.call()
    assert machine.spent_s < LEAST_S and set(machine.ran[-6:]) == {0}, "the round that had begun was the last one"


class Governor:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def tell(self, message: Any) -> None:
        self.told.append(dict(message))

    def hear(self) -> list[dict[str, Any]]:
        return []

    def end(self) -> None:
        pass

    def leave(self) -> None:
        pass


def test_what_is_behind_begins_at_once_with_half_of_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    governor, warm_up, started = Governor(), WarmUp(), list[Limits]()

    def start(limits: Limits, lock: Path) -> Governor:
        started.append(limits)
        return governor

    background = Background(TEN_PERCENT, lambda: tmp_path / "lock", start, warm_up=warm_up)
    background.submit(Job("module:work", {}, "graph"))
    assert not started, "its calls have paid for nothing"
    with warm_up.opened():
        background.paid("graph", Figures(1, 0.01))
    assert [limits.share for limits in started] == [0.5]
    assert started[0].free and any("job" in message for message in governor.told)
    background.submit(Job("module:work", {}, "graph"))
    background.paid("graph", Figures(100, 400.0))
    limits = next(message["limits"] for message in governor.told if "limits" in message)
    assert Limits(**limits) == TEN_PERCENT
