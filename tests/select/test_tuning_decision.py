"""Who wins a race, and decisions as JSON."""

from __future__ import annotations

import json

import pytest

from mixbackend.plan.choice import DEFAULT, Choice
from mixbackend.select.decision import MEASURED, SLOWER, UNTUNED, Decision, Trial, decide

ONE, OTHER = Choice(single="one"), Choice(("a", "b"), "", "channels_last")


def trial(choice: Choice, *rounds: float, status: str = MEASURED) -> Trial:
    return Trial(choice, 1.0, status, "", rounds)


def test_the_fastest_wins() -> None:
    assert decide([trial(DEFAULT, 2.0, 2.1), trial(ONE, 1.0, 1.5), trial(OTHER, 1.4, 1.5)]).choice == ONE


def test_among_equals_the_first_wins() -> None:
    assert decide([trial(DEFAULT, 1.009), trial(ONE, 1.0)]).choice == DEFAULT
    assert decide([trial(DEFAULT, 1.02), trial(ONE, 1.0)]).choice == ONE


def test_candidates_are_compared_within_each_round() -> None:
    """The machine gets slower all the time: medians would say that the one with fewer slow turns is as fast."""
    drift = [1.0, 1.1, 1.2, 1.3, 1.4]
    slower, faster = [1.05 * speed for speed in drift], list(drift)
    assert decide([trial(DEFAULT, *slower), trial(ONE, *faster)]).choice == ONE
    assert decide([trial(DEFAULT, *slower), trial(ONE, *(faster[1:]), 1.5)]).choice == DEFAULT
    # One that left the turns early is compared by those that it took.
    assert decide([trial(DEFAULT, 1.02), trial(ONE, *faster)]).choice == ONE


def test_only_those_that_finished_can_win() -> None:
    trials = [trial(DEFAULT, 2.0), trial(ONE, 1.0, status=SLOWER), trial(OTHER, status="crash")]
    assert decide(trials).choice == DEFAULT
    assert decide(trials[1:]).choice == DEFAULT


def test_a_round_trip_through_json() -> None:
    decision = decide([trial(OTHER, 1.0, 1.25), Trial(ONE, 0.5, "crash", "signal SIGSEGV")])
    assert Decision.from_dict(json.loads(json.dumps(decision.to_dict()))) == decision


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"choice": {"backends": "all", "single": "", "layout": ""}, "trials": []},
        {"choice": {"backends": [], "single": "", "layout": "blocked"}, "trials": []},
        {"choice": DEFAULT.to_dict(), "trials": [{"choice": DEFAULT.to_dict()}]},
        {"choice": DEFAULT.to_dict(), "trials": None},
        {"choice": None, "trials": []},
    ],
)
def test_other_data_is_no_decision(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no "):
        Decision.from_dict(data)


def test_the_record_of_a_decision() -> None:
    assert UNTUNED.record() is None
    record = decide([trial(ONE, 1.0, 2.0, 3.0), trial(DEFAULT, status="timeout")]).record()
    assert record is not None
    assert record.to_dict() == {
        "chosen": "one",
        "trials": [
            {"choice": "one", "status": "measured", "estimated_s": 1.0, "median_s": 2.0, "spread_s": 1.0},
            {"choice": "mixture", "status": "timeout", "estimated_s": 1.0, "median_s": None, "spread_s": None},
        ],
    }


def test_choices_in_words() -> None:
    assert [str(DEFAULT), str(ONE), str(OTHER)] == ["mixture", "one", "mixture of a, b, channels_last"]
