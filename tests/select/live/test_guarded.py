"""A challenger's first calls: what it raises the champion answers, and state is as after one run."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_machine import Machine
from tiers import draws

from mixbackend.execute.state_restore import Changes
from mixbackend.select.live.duel import Ticket
from mixbackend.select.live.guarded import GUARDED, guarded

SLOTS = 5


def model(values: list[Any]) -> list[torch.Tensor]:
    """A cache that is written at a counter, which moves on, and a draw; as a graph, it empties its list."""
    x, cache, counter = values
    values.clear()
    noise = torch.rand(3)
    cache[int(counter) % SLOTS].copy_(x)
    counter.add_(1)
    return [cache.sum(0) * 2.0 + noise]


CHANGES = Changes(places=(1, 2), draws=True)


class Faulty:
    """The model, whose call of this number raises: after so many of its writes."""

    def __init__(self, fails_at: int, after_writes: int) -> None:
        self.calls, self.fails_at, self.after_writes = 0, fails_at, after_writes

    def __call__(self, values: list[Any]) -> list[torch.Tensor]:
        self.calls += 1
        if self.calls != self.fails_at:
            return model(values)
        _, cache, counter = values
        values.clear()
        torch.rand(7)
        if self.after_writes > 0:
            cache.fill_(99.0)
        if self.after_writes > 1:
            counter.add_(5)
        raise RuntimeError("planted")


def state() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(SLOTS, 3), torch.zeros((), dtype=torch.int64)


@pytest.mark.parametrize("after_writes", [0, 1, 2])
def test_what_a_challenger_raises_the_champion_answers(after_writes: int) -> None:
    (cache, counter), (expected_cache, expected_counter) = state(), state()
    x = torch.arange(3.0)
    torch.manual_seed(3)
    expected = model([x, expected_cache, expected_counter])
    torch.manual_seed(3)
    values = [x, cache, counter]
    answer = guarded(Faulty(1, after_writes), model, values, CHANGES)
    assert isinstance(answer.error, RuntimeError) and values == []
    torch.testing.assert_close(list(answer.results), expected)
    assert torch.equal(cache, expected_cache) and torch.equal(counter, expected_counter)
    assert cache._version == expected_cache._version and counter._version == expected_counter._version
    torch.manual_seed(3)
    torch.rand(3)
    following = torch.rand(1)
    torch.manual_seed(3)
    guarded(Faulty(1, after_writes), model, [x, *state()], CHANGES)
    assert torch.equal(torch.rand(1), following), "random numbers go on where one run leaves them"


def test_an_error_of_the_users_is_the_champions() -> None:
    def refuses(values: list[Any]) -> list[torch.Tensor]:
        raise IndexError("the user's own")

    with pytest.raises(IndexError, match="the user's own"):
        guarded(Faulty(1, 2), refuses, [torch.arange(3.0), *state()], CHANGES)


@settings(derandomize=True, max_examples=draws(3, 6), deadline=None)
@given(
    seed=st.integers(0, 9999),
    faults=st.lists(st.tuples(st.integers(1, GUARDED), st.integers(0, 2)), min_size=1, max_size=3),
    speed=st.floats(0.5, 2.0),
)
def test_results_and_state_are_eagers_in_every_call_under_live_selection(
    seed: int, faults: list[tuple[int, int]], speed: float
) -> None:
    programs = [model, *(Faulty(*fault) for fault in faults), model]
    speeds = [0.1, *(0.1 * speed for _ in faults), 0.08]
    machine = Machine(speeds, seed=seed, estimates=[0.1] * len(programs))
    (cache, counter), (expected_cache, expected_counter) = state(), state()
    draw = random.Random(seed)
    errors: list[Exception] = []

    def run(ticket: Ticket) -> str:
        x = torch.tensor([draw.random() for _ in range(3)])
        torch.manual_seed(ticket.number)
        (expected,) = model([x, expected_cache, expected_counter])
        torch.manual_seed(ticket.number)
        program: Any = programs[ticket.contender]
        values: list[Any] = [x, cache, counter]
        error: Exception | None = None
        if ticket.contender != machine.selection.champion and ticket.tries < GUARDED:
            answer = guarded(program, model, values, CHANGES)
            results, error = answer.results, answer.error
        else:
            results = program(values)
        assert torch.equal(results[0], expected)
        assert torch.equal(cache, expected_cache) and torch.equal(counter, expected_counter)
        errors.extend([error] if error else [])
        return str(error or "")

    machine.fails = run
    for _ in range(160):
        machine.call()
    assert len(errors) == len([item for item in machine.happened if item.change == "out"])
