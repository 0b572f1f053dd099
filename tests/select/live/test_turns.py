"""Turns: A B B A, which calls count, what becomes of rounds that cannot end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.select.live.turns import HOPELESS_ROUNDS, SUMMED, Call, Side, Turns, agree

A, B = Side.CHAMPION, Side.CHALLENGER


def run(turns: Turns, count: int, call_s: dict[Side, float], **facts: object) -> tuple[Turns, list[Side]]:
    sides = []
    for _ in range(count):
        side = turns.side
        sides.append(side)
        turns = turns.after(Call(side, call_s[side], 2.0 * call_s[side], **facts))  # type: ignore[arg-type]
    return turns, sides


def test_long_calls_are_turns_of_two_in_the_order_abba() -> None:
    turns, sides = run(Turns(), 8, {A: 0.5, B: 0.4})
    assert sides == [A, A, B, B, B, B, A, A]
    (found,) = turns.rounds
    assert found.champion.call_s == pytest.approx(0.5) and found.challenger.call_s == pytest.approx(0.4)
    assert found.challenger.step_s == pytest.approx(0.8)
    assert turns.between_rounds


def test_short_calls_fill_twenty_milliseconds_after_the_first() -> None:
    turns, sides = run(Turns(), 6, {A: 0.005, B: 0.005})
    assert sides == [A, A, A, A, A, B]
    turns, _ = run(Turns(), 20, {A: 0.005, B: 0.005})
    assert len(turns.rounds) == 1


def test_the_first_call_of_a_turn_is_not_counted() -> None:
    turns, taken = Turns(), []
    while not turns.rounds:
        call_s = 9.0 if not turns.now.skipped else 0.03
        taken.append(call_s)
        turns = turns.after(Call(turns.side, call_s, call_s))
    assert turns.rounds[0].champion.call_s == turns.rounds[0].challenger.call_s == 0.03
    assert taken == [9.0, 0.03] * 4


@pytest.mark.parametrize(
    "odd", [{"symbols": (120,)}, {"symbols": ()}, {"alone": False}, {"stream": 7}], ids=lambda odd: next(iter(odd))
)
def test_calls_that_are_unlike_do_not_count(odd: dict[str, object]) -> None:
    turns = Turns()
    for place in range(16):
        facts = {"symbols": (100 + place % 5,), **(odd if place % 2 and place > 1 else {})}
        call_s = 5.0 if facts.keys() - {"symbols"} or facts["symbols"] in ((120,), ()) else 0.03
        turns = turns.after(Call(turns.side, call_s, call_s, **facts))  # type: ignore[arg-type]
    assert all(found.champion.call_s == found.challenger.call_s == 0.03 for found in turns.rounds)
    assert not turns.summing


def test_a_call_that_another_program_ran_does_not_count() -> None:
    turns = Turns().after(Call(B, 0.03, 0.03))
    assert turns.side is A and not turns.now.skipped and turns.now.disturbed == 1


def test_where_sizes_never_agree_sums_of_ten_turns_count() -> None:
    turns, calls, sizes = Turns(), 0, random.Random(1)
    while not turns.rounds and calls < 1000:
        calls += 1
        size = sizes.randrange(10, 1000)
        turns = turns.after(Call(turns.side, 1e-4 * size, 1e-4 * size, (size,)))
    assert turns.summing and turns.rounds
    turns, sides = run(turns, 4 * SUMMED, {A: 0.001, B: 0.002})
    assert sides.count(A) == sides.count(B) == 2 * SUMMED
    assert turns.rounds[-1].challenger.call_s == pytest.approx(2.0 * turns.rounds[-1].champion.call_s)


def test_where_calls_always_overlap_there_is_no_hope() -> None:
    turns, _ = run(Turns(), 40 * HOPELESS_ROUNDS, {A: 0.01, B: 0.01}, alone=False)
    assert turns.hopeless and not turns.rounds


@settings(derandomize=True, max_examples=draws(70, 200), deadline=None)
@given(st.lists(st.tuples(st.floats(1e-4, 0.1), st.integers(90, 130), st.booleans()), max_size=300))
def test_both_have_the_same_turns_in_every_round(calls: list[tuple[float, int, bool]]) -> None:
    turns, sides = Turns(), []
    for call_s, size, alone in calls:
        before, side = len(turns.rounds), turns.side
        turns = turns.after(Call(side, call_s, call_s, (size,), 0, alone))
        sides.append(side)
        if len(turns.rounds) > before:
            assert turns.between_rounds and turns.side is A
    least, most = min((c[0] for c in calls), default=1.0), max((c[0] for c in calls), default=1.0)
    for found in turns.rounds:
        assert least <= min(found.champion.call_s, found.challenger.call_s)
        assert max(found.champion.call_s, found.challenger.call_s) <= most


@pytest.mark.parametrize(
    ("one", "other", "like"),
    [((), (), True), ((100,), (105,), True), ((100,), (106,), False), ((1, 2), (1,), False), ((0,), (0,), True)],
)
def test_agreement(one: tuple[int, ...], other: tuple[int, ...], like: bool) -> None:
    assert agree(one, other) is agree(other, one) is like
