"""When the program of a graph may change, and who is worth a try."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from simulated_machine import challenger

from mixbackend.host.process_facts import reset_for_tests
from mixbackend.select.live import steps
from mixbackend.select.live.arbiter import arbiter
from mixbackend.select.live.challengers import worth_trying
from mixbackend.select.live.overlaps import overlaps
from mixbackend.select.live.steps import SWITCH, Hold, Situation, is_recomputation, situation, why_not

HELD: dict[str, tuple[Any, Hold]] = {
    "off": (True, Hold.OFF),
    "deterministic": (True, Hold.DETERMINISTIC),
    "ranks": (2, Hold.RANKS),
    "capturing": (True, Hold.CAPTURING),
    "in_backward": (True, Hold.IN_BACKWARD),
}


@pytest.mark.parametrize("name", [field.name for field in fields(Situation)])
def test_each_alone_holds_the_program(name: str) -> None:
    value, hold = HELD[name]
    assert why_not(Situation()) is None
    assert why_not(replace(Situation(), **{name: value})) is hold and hold.value
    everything = Situation(**{field: held for field, (held, _) in HELD.items()})
    assert why_not(everything) is Hold.OFF and Hold.OFF.for_good and not Hold.IN_BACKWARD.for_good


def test_as_the_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert why_not(situation()) is None
    assert situation(off=True) == Situation(off=True)
    monkeypatch.setenv(SWITCH, "Off")
    assert why_not(situation()) is Hold.OFF
    monkeypatch.setenv(SWITCH, "auto")
    torch.use_deterministic_algorithms(True)
    try:
        assert why_not(situation()) is Hold.DETERMINISTIC
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert why_not(situation()) is Hold.RANKS


def test_what_a_checkpoint_computes_again_is_part_of_a_backward() -> None:
    seen: list[Hold | None] = []
    of_backward: list[Hold | None] = []
    again: list[tuple[bool, bool]] = []

    def part(x: torch.Tensor) -> torch.Tensor:
        seen.append(why_not(situation()))
        of_backward.append(why_not(situation(of_backward=True)))
        again.append((is_recomputation("forward"), is_recomputation("backward")))
        return x.sin()

    x = torch.ones(3, requires_grad=True)
    torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False).sum().backward()
    assert seen == [None, Hold.IN_BACKWARD] and of_backward == [None, None]
    assert again == [(False, False), (True, False)]


def test_who_is_worth_a_try_and_in_which_order() -> None:
    quick, slow = challenger("quick", 0.9, build_s=5.0), challenger("slow", 1.6, error=1.5, build_s=1.0)
    unsure, whole = (
        challenger("unsure", 1.6, error=2.0, build_s=5.0),
        challenger("whole", 9.0, build_s=9.0, always=True),
    )
    assert worth_trying([whole, unsure, slow, quick], 1.0) == (quick, unsure, whole)
    assert worth_trying([slow, quick], 1.0) == (quick,)
    cheap = challenger("cheap", 0.9, build_s=0.5)
    assert worth_trying([quick, cheap], 1.2) == (cheap, quick), "of equal gain the cheapest build first"
    great = challenger("great", 0.1, build_s=5.0)
    assert worth_trying([slow, great], 1.2) == (great, slow), "a gain that is worth the longer build"


def test_the_expected_gain_is_the_mean_over_what_a_call_may_take() -> None:
    draws = torch.linspace(-1.0, 1.0, 200001, dtype=torch.float64)
    for error in (1.0, 1.15, 1.7, 2.5):
        for estimated_s in (0.3, 0.9, 1.1, 2.0):
            mean = (1.0 - estimated_s * error**draws).clamp(min=0.0).mean().item()
            assert challenger("any", estimated_s, error=error).gain_s(1.0) == pytest.approx(mean, abs=1e-5)
    assert challenger("free", 0.0).gain_s(1.0) == 1.0 and challenger("never", math.inf).gain_s(1.0) == 0.0


def test_facts_of_the_process_are_forgotten_by_tests() -> None:
    first, counted = arbiter(), overlaps()
    assert arbiter() is first and first.may(1, 1.0, 0.0)
    reset_for_tests()
    assert arbiter() is not first and overlaps() is not counted and arbiter().may(2, 0.1, 0.0)
    assert steps.SWITCH == "MIXBACKEND_SELECT"
