"""B17: comparing at the first call is bounded in seconds, not in turns alone, and ends where the difference cannot
matter: slow calls that differ by less than a percent are not run dozens of times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flat_costs import FlatCosts
from stand_in_backends import Sleeper

from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost import costs as costs_module
from mixbackend.cost.costs import SessionCosts
from mixbackend.registry import isolated_registry
from mixbackend.select import comparison_processor
from mixbackend.select.turns import take_turns

CALL_S = 0.21


def _told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *backends: Sleeper, **search: Any) -> str:
    """What a first call says, after it gave what eager gives."""
    torch._dynamo.reset()
    names = [backend.name for backend in backends]
    monkeypatch.setattr(costs_module, "cost_model", lambda *_, **__: FlatCosts(seconds={"eager": 1e-3}))
    monkeypatch.setattr(comparison_processor, "LEAST_S", 0.0)
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: set(names))
    with isolated_registry(*backends, EagerBackend()):
        mixture = Mixture(
            load_config({"backends": [*names, "eager"], "cache": {"dir": str(tmp_path)}, "search": search})
        )
        value = torch.randn(8)
        compiled = torch.compile(lambda x: x.exp() + 1.0, backend=mixture, dynamic=False)
        with torch.no_grad():
            torch.testing.assert_close(compiled(value), value.exp() + 1.0)
        (told,) = (event.detail for event in mixture.report().events if event.kind == "tuning")
        torch._dynamo.reset()
    return told


def test_slow_calls_that_differ_by_a_trifle_run_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Sleeper("one", CALL_S), Sleeper("other", CALL_S + 0.001)
    told = _told(tmp_path, monkeypatch, one, other)
    assert " at the first call (" in told
    # Verified, and three or a few more turns; then the user's own call.
    assert one.calls + other.calls <= 2 * 7 + 1


def test_seconds_end_it_before_all_had_their_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = [Sleeper(name, CALL_S) for name in ("one", "two", "three", "four", "five")]
    told = _told(tmp_path, monkeypatch, *backends, first_call_s=1.0)
    assert "no_time" in told, "the second was spent before all had run"
    assert sum(backend.calls for backend in backends) * CALL_S < 1.0 + 6 * CALL_S


def test_no_round_begins_when_time_is_over() -> None:
    def noisy(*seconds: float) -> Iterator[float]:
        return itertools.cycle(seconds)

    turns = [noisy(1.0, 1.2), noisy(1.15, 1.05)]
    rounds = {number: [next(turn)] for number, turn in enumerate(turns)}
    take_turns(rounds, lambda number: next(turns[number]), 3, 9, lambda: len(rounds[0]) >= 4)
    assert [len(taken) for taken in rounds.values()] == [4, 4]


def test_noise_around_a_trifle_asks_for_no_further_turns() -> None:
    ratios = itertools.cycle([1.02, 0.985, 1.015, 1.025])
    rounds = {0: [1.0], 1: [next(ratios)]}
    take_turns(rounds, lambda number: next(ratios) if number else 1.0, 3, 9)
    assert [len(taken) for taken in rounds.values()] == [3, 3]
