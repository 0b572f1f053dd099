"""Turns of a comparison at the first call: as many as noise asks for, and no more."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mixbackend.execute.state_restore import Changes, RepeatedCall
from mixbackend.plan.choice import Choice
from mixbackend.select.comparison import BuiltCandidate, compare
from mixbackend.select.decision import decide
from mixbackend.select.turns import still_racing

CALL = RepeatedCall((), Changes())


@dataclass
class ScriptedHarness:
    """Candidates are iterators over the seconds of their turns.

    Attributes:
        order: whose turn it was.
    """

    compiling_s: float = 1.0
    running_s: float = 1e3
    turns: int = 3
    most_turns: int = 7
    order: list[Any] = field(default_factory=list)

    def warm(self, run: Any, call: Any) -> None:
        pass

    def turn(self, run: Any, call: Any) -> float:
        self.order.append(run)
        return next(run)

    def prepared(self, graphs: Any, values: Any) -> contextlib.AbstractContextManager[RepeatedCall]:
        return contextlib.nullcontext(CALL)


def candidates(*seconds: Iterator[float]) -> list[BuiltCandidate]:
    return [BuiltCandidate(Choice(single=str(number)), run) for number, run in enumerate(seconds)]


def turns_of(*seconds: Iterator[float]) -> list[int]:
    return [len(trial.rounds_s) for trial in compare(candidates(*seconds), CALL, ScriptedHarness())]


def test_clear_differences_need_no_more_than_the_usual_turns():
    assert turns_of(itertools.repeat(1.0), itertools.repeat(1.1)) == [3, 3]


def test_noise_as_large_as_the_difference_asks_for_more():
    assert turns_of(itertools.cycle([1.0, 1.2]), itertools.cycle([1.15, 1.05])) == [7, 7]


def test_more_turns_end_when_the_quickest_is_told_from_the_others():
    noisy = itertools.chain([1.25, 1.0, 1.0], itertools.repeat(1.0))
    assert turns_of(noisy, itertools.repeat(1.1)) == [4, 4]


def test_who_is_as_quick_asks_for_no_more():
    assert turns_of(itertools.cycle([1.0, 1.1]), itertools.cycle([1.004, 1.1])) == [3, 3]


def test_who_is_far_behind_twice_has_no_third_turn_and_one_alone_needs_no_second():
    assert turns_of(itertools.repeat(1.0), itertools.repeat(2.0)) == [2, 2]
    assert turns_of(itertools.repeat(1.0), itertools.repeat(4.0)) == [1, 1]


def test_a_disturbed_first_turn_puts_nobody_out():
    disturbed = itertools.chain([1.9], itertools.repeat(0.8))
    found = compare(candidates(itertools.repeat(1.0), disturbed), CALL, ScriptedHarness())
    assert [trial.median_s for trial in found] == [1.0, 0.8]


def test_a_lucky_first_turn_puts_nobody_out():
    lucky = itertools.chain([0.5], itertools.repeat(1.0))
    found = compare(candidates(lucky, itertools.chain([0.8], itertools.repeat(0.6))), CALL, ScriptedHarness())
    assert [trial.median_s for trial in found] == [1.0, 0.6]


def test_turns_go_forwards_and_backwards():
    harness = ScriptedHarness()
    runs = [itertools.repeat(1.0), itertools.repeat(1.1), itertools.repeat(1.2)]
    compare(candidates(*runs), CALL, harness)
    first, second, third = runs
    # The last is the one that runs if nobody is quicker: its first run is the user's own.
    assert harness.order == [third, first, second, second, first, third, third, first, second]


def test_who_left_while_the_machine_was_quick_does_not_decide():
    """Far behind in two quick rounds, it looks as quick as those that went on while all became slower."""
    speed = [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    left = iter([1.4, 1.4])
    lucky, steady = (
        [share * now for share, now in zip(shares, speed, strict=True)]
        for shares in ([0.9, 0.9, 1.1, 1.1, 1.1, 1.1, 1.1], [1.0] * 7)
    )
    found = compare(candidates(left, iter(lucky), iter(steady)), CALL, ScriptedHarness())
    assert [len(trial.rounds_s) for trial in found] == [2, 7, 7]
    assert decide(found).choice.single == "2"


@pytest.mark.parametrize(
    ("rounds", "racing"),
    [
        ([[1.0, 2.0], [1.4, 2.8]], [0]),
        ([[1.0, 2.0], [1.4, 2.2]], [0, 1]),
        ([[1.0, 2.0, 1.0], [1.1, 2.2, 1.1]], [0]),
        ([[1.0, 2.0, 1.0], [1.1, 2.2, 0.8]], [0, 1]),
        ([[1.0, 2.0, 1.0, 3.0], [1.1, 2.2, 0.9, 3.3]], [0]),
        ([[1.0, 2.0, 1.0], [1.005, 1.99, 1.005]], [0]),
        ([[1.1, 2.2, 1.1], [1.0, 2.0, 1.0], [1.05, 2.1, 0.9]], [1, 2]),
    ],
)
def test_turns_count_beside_those_of_the_same_round(rounds: Sequence[Sequence[float]], racing: list[int]):
    """The machine is twice as slow in the second one."""
    assert still_racing(dict(enumerate(rounds)), 3) == racing
