"""The sign test on paired rounds: its error probabilities, exactly, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import draws

from mixbackend.select.live import paired_decision
from mixbackend.select.live.paired_decision import MISTAKE, MOST, MOST_QUIET, Verdict, decide
from mixbackend.select.live.turns import Round, Times


def rounds(ratios: Sequence[float], steps: Sequence[float] | None = None) -> list[Round]:
    pairs = zip(ratios, steps or ratios, strict=True)
    return [Round(Times(1.0, 2.0), Times(ratio, 2.0 * step)) for ratio, step in pairs]


def chance_of(verdict: Verdict, win: float, most: int) -> float:
    """Exact probability of a verdict within so many rounds, for a challenger that wins each with this chance."""
    found, states = 0.0, {(0, 0): 1.0}
    for _ in range(most):
        following: dict[tuple[int, int], float] = {}
        for (wins, losses), chance in states.items():
            for won, share in ((1, win), (0, 1.0 - win)):
                state = wins + won, losses + 1 - won
                if paired_decision._sum(*state) >= paired_decision._ENOUGH:
                    found += chance * share * (verdict is Verdict.FASTER)
                elif paired_decision._sum(*reversed(state)) >= paired_decision._ENOUGH:
                    found += chance * share * (verdict is Verdict.SLOWER)
                else:
                    following[state] = following.get(state, 0.0) + chance * share
        states = following
    return found


def wins(advantage: float, noise: float) -> float:
    return 0.5 * (1.0 + math.erf(-math.log(1.0 - advantage) / noise / math.sqrt(2.0)))


def test_five_percent_at_two_percent_noise_is_found_in_nine_rounds() -> None:
    assert chance_of(Verdict.FASTER, wins(0.05, 0.02), MOST_QUIET) == pytest.approx(0.9990, abs=2e-4)


def test_the_bound_of_a_quiet_machine_is_where_nine_rounds_find_it_in_99_percent() -> None:
    assert chance_of(Verdict.FASTER, wins(0.05, paired_decision.QUIET), MOST_QUIET) >= 0.99
    assert chance_of(Verdict.FASTER, wins(0.05, 1.05 * paired_decision.QUIET), MOST_QUIET) < 0.99


@pytest.mark.parametrize("most", [MOST_QUIET, MOST, 100])
def test_who_is_worse_does_not_win(most: int) -> None:
    assert chance_of(Verdict.FASTER, 1.0 - wins(0.05, 0.02), most) < 1e-12
    assert chance_of(Verdict.FASTER, 0.5, most) <= MISTAKE
    assert chance_of(Verdict.SLOWER, 0.5, most) <= MISTAKE


def test_as_few_rounds_as_the_docstring_says() -> None:
    assert decide(rounds([0.97] * 5)).verdict is Verdict.OPEN
    assert decide(rounds([0.97] * 6)).verdict is Verdict.FASTER
    assert decide(rounds([0.97, 1.01] + [0.97] * 6)).verdict is Verdict.OPEN
    assert decide(rounds([0.97, 1.01] + [0.97] * 7)).verdict is Verdict.FASTER
    assert decide(rounds([1.03] * 6)).verdict is Verdict.SLOWER


def test_a_quiet_machine_ends_after_nine_rounds_and_a_noisy_one_after_thirty() -> None:
    quiet, noisy = (
        [1.0 + 0.004 * (-1) ** place for place in range(40)],
        [1.0 + 0.08 * (-1) ** place for place in range(40)],
    )
    for ratios, most in ((quiet, MOST_QUIET), (noisy, MOST)):
        ended = next(n for n in range(1, 40) if decide(rounds(ratios[:n])).verdict is not Verdict.OPEN)
        assert decide(rounds(ratios[:ended])).verdict is Verdict.NO_DIFFERENCE
        assert most // 2 < ended <= most, "it ends once no rounds that are left can show a difference"


def test_who_wins_by_calls_must_not_lose_from_call_to_call() -> None:
    assert decide(rounds([0.9] * 6, [1.1] * 6)).verdict is Verdict.SLOWER
    assert decide(rounds([0.9] * 6, [1.0] * 6)).verdict is Verdict.FASTER
    leaning = [1.1, 1.1, 1.1, 1.1, 0.99, 0.99]
    assert decide(rounds([0.9] * 6, leaning)).verdict is Verdict.OPEN, "what speaks against it is looked at first"
    assert decide(rounds([0.9] * 9, [*leaning, 0.9, 0.9, 0.9])).verdict is Verdict.FASTER


def test_who_is_far_behind_has_no_more_rounds() -> None:
    assert decide(rounds([3.1])).verdict is Verdict.SLOWER
    assert decide(rounds([1.4])).verdict is Verdict.OPEN
    assert decide(rounds([1.4, 1.35])).verdict is Verdict.SLOWER
    assert decide(rounds([1.4, 1.2])).verdict is Verdict.OPEN


@settings(derandomize=True, max_examples=draws(70, 200), deadline=None)
@given(st.lists(st.floats(0.5, 2.0), min_size=MOST, max_size=MOST), st.data())
def test_it_always_ends_and_mirrors(ratios: list[float], data: st.DataObject) -> None:
    outcomes = [decide(rounds(ratios[: count + 1])) for count in range(MOST)]
    assert outcomes[-1].verdict is not Verdict.OPEN
    if all(0.8 < ratio < 1.25 for ratio in ratios):
        mirrored = decide(rounds([1.0 / ratio for ratio in ratios])).verdict
        opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
        assert mirrored is opposite.get(outcomes[-1].verdict, outcomes[-1].verdict)
