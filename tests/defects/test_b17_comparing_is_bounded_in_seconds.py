"""B17: comparing is bounded. On processors no call runs more than once; where comparing makes calls of its own, seconds
bound it, and it ends where the difference cannot matter."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flat_costs import FlatCosts
from stand_in_backends import Sleeper, settle, try_at_once

from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost import costs as costs_module
from mixbackend.cost.costs import SessionCosts
from mixbackend.registry import isolated_registry
from mixbackend.select.live import processor_challengers
from mixbackend.select.turns import take_turns


def test_each_call_of_the_user_runs_one_program_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are tried, and however little they differ."""
    backends = [Sleeper("one", 0.003), Sleeper("other", 0.003), Sleeper("third", 0.003)]
    names = [backend.name for backend in backends]
    monkeypatch.setattr(costs_module, "cost_model", lambda *_, **__: FlatCosts(seconds={"eager": 1e-3}))
    monkeypatch.setattr(processor_challengers, "LEAST_S", 0.0)
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: set(names))
    try_at_once(monkeypatch)
    with isolated_registry(*backends, EagerBackend()):
        mixture = Mixture(load_config({"backends": [*names, "eager"], "cache": {"dir": str(tmp_path)}}))
        value, calls = torch.randn(8), []
        compiled = torch.compile(lambda x: x.exp() + 1.0, backend=mixture, dynamic=False)

        def call() -> None:
            calls.append(compiled(value))
            torch.testing.assert_close(calls[-1], value.exp() + 1.0)

        with torch.no_grad():
            settle(mixture, call)
        assert all(backend.calls for backend in backends), "all were tried"
        assert sum(backend.calls for backend in backends) == len(calls)
        torch._dynamo.reset()


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
