"""The race, with runners that are told how fast they are: turns, cuts, failures, budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from mixbackend.plan.choice import Choice
from mixbackend.select import race as race_module
from mixbackend.select.decision import MEASURED, SLOWER, decide
from mixbackend.select.race import HEATS, ROUNDS, Candidate, race


@dataclass
class Track:
    """A clock, and who is at work."""

    now: float = 0.0
    awake: set[str] = field(default_factory=set)
    most_awake: int = 0
    closed: set[str] = field(default_factory=set)
    turns: dict[str, int] = field(default_factory=dict)


@dataclass
class Fake:
    name: str
    track: Track
    seconds: Callable[[int], float]
    start_s: float = 1.0
    fails_at: int = -1
    status: str = "crash"

    def started(self) -> Fake:
        self.resume()
        return self

    def wait(self, timeout_s: float) -> bool:
        passed = min(timeout_s, self.start_s)
        self.track.now += passed
        self.start_s -= passed
        return self.start_s <= 0.0

    def answer(self, timeout_s: float) -> dict[str, Any]:
        self.track.now += min(self.start_s, timeout_s)
        if self.start_s > timeout_s:
            return {"status": "timeout", "detail": "no answer"}
        return {"status": "pass"} if self.fails_at != 0 else {"status": self.status, "detail": "at once"}

    def tell(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self.track.awake == {self.name}, "others are at work"
        self.track.now += message["seconds"]
        assert message["first"] == (self.name not in self.track.turns)
        turn = self.track.turns[self.name] = self.track.turns.get(self.name, 0) + 1
        if turn == self.fails_at:
            return {"status": self.status, "detail": "later"}
        seconds = self.seconds(turn)
        regions = [{"measured_s": seconds}] if message["regions"] else []
        return {"status": "pass", "median_s": seconds, "least_s": 0.9 * seconds, "regions": regions}

    def pause(self) -> None:
        self.track.awake.remove(self.name)

    def resume(self) -> None:
        self.track.awake.add(self.name)
        self.track.most_awake = max(self.track.most_awake, len(self.track.awake))

    def close(self) -> None:
        self.track.awake.discard(self.name)
        self.track.closed.add(self.name)


def run(track: Track, budget_s: float = 1000.0, at_once: int = 1, **runners: dict[str, Any]) -> dict[str, Any]:
    candidates = [Candidate(Choice(single=name), 1.0) for name in runners]

    def start(choice: Choice) -> Fake:
        return Fake(choice.single, track, **runners[choice.single]).started()

    trials = race(candidates, start, budget_s, clock=lambda: track.now, at_once=at_once)
    assert track.closed == {trial.choice.single for trial in trials if trial.status != "no_time"}
    return {trial.choice.single: trial for trial in trials}


def steady(seconds: float) -> dict[str, Any]:
    return {"seconds": lambda turn: seconds}


def test_close_candidates_run_all_rounds_and_the_faster_wins() -> None:
    track = Track()
    trials = run(track, first={"seconds": lambda turn: 1.1 - 0.1 * (turn % 2)}, second=steady(1.02))
    assert track.turns == {"first": HEATS + ROUNDS, "second": HEATS + ROUNDS}
    assert {trial.status for trial in trials.values()} == {MEASURED}
    assert decide(list(trials.values())).choice.single == "second"


def test_one_far_away_leaves_after_its_first_turn() -> None:
    track = Track()
    trials = run(track, first=steady(1.0), slow=steady(2.5), near=steady(1.2))
    assert track.turns["slow"] == 1
    assert trials["slow"].status == SLOWER


def test_a_machine_that_was_quick_for_one_first_turn_puts_nobody_out() -> None:
    """First turns lie seconds apart; and rounds count by themselves while the machine's speed goes up and down."""
    track = Track()
    lucky = {"seconds": lambda turn: 0.6 if turn == 1 else 1.1}
    trials = run(track, first=steady(1.2), lucky=lucky, quick=steady(1.0))
    assert decide(list(trials.values())).choice.single == "quick"
    speed = [1.0] * HEATS + [1.0, 1.5] * ROUNDS
    slower, quicker = ({"seconds": lambda turn, by=by: by * speed[turn - 1]} for by in (1.1, 1.0))
    trials = run(Track(), first=quicker, slower=slower)
    assert trials["slower"].status == SLOWER and len(trials["slower"].rounds_s) == 3


def test_the_first_stays_to_be_compared_with() -> None:
    track = Track()
    trials = run(track, first=steady(3.0), middle=steady(2.0), quick=steady(1.0))
    assert [trial.status for trial in trials.values()] == [MEASURED, SLOWER, MEASURED]
    assert track.turns["first"] == track.turns["quick"] == HEATS + 3, "behind in each of three rounds"


def test_clearly_slower_ones_leave_between_rounds() -> None:
    track = Track()
    noisy = {"seconds": lambda turn: 0.95 + 0.1 * (turn % 2)}
    trials = run(track, first=steady(1.0), second=steady(1.2), third=noisy)
    assert trials["second"].status == SLOWER
    assert 1 < track.turns["second"] < HEATS + ROUNDS
    assert track.turns["third"] == HEATS + ROUNDS


def test_some_compile_side_by_side_and_then_take_turns_alone() -> None:
    track = Track()
    trials = run(track, at_once=2, first=steady(1.0), second=steady(1.0), third=steady(1.0))
    assert {trial.status for trial in trials.values()} == {MEASURED}
    assert set(track.turns.values()) == {HEATS + 3}, "all are as quick"
    assert track.most_awake == 2


def test_on_a_slow_machine_the_first_group_may_take_longer() -> None:
    slow = {**steady(1.0), "start_s": 36.0}
    trials = run(Track(), 100.0, at_once=2, first=slow, second=slow)
    assert trials["first"].status == MEASURED
    assert run(Track(), 100.0, first=slow)["first"].status == "timeout", "alone, it may as well be one that hangs"


def test_where_nobody_can_be_measured_the_race_ends_without_a_winner() -> None:
    trials = run(Track(), at_once=2, one={**steady(1.0), "fails_at": 0}, other={**steady(1.0), "fails_at": 0})
    assert [trial.status for trial in trials.values()] == ["crash", "crash"]
    assert not decide(list(trials.values())).measured


def test_one_that_hangs_beside_another_takes_no_time_from_it() -> None:
    track = Track()
    trials = run(track, 90.0, at_once=2, hang={**steady(0.1), "start_s": 1e9}, ready={**steady(1.0), "start_s": 0.0})
    assert [trial.status for trial in trials.values()] == ["timeout", MEASURED]
    assert track.now < 40.0


@pytest.mark.parametrize("fails_at", [0, 1, 4])
def test_a_failure_costs_only_itself(fails_at: int) -> None:
    bad = {**steady(0.99), "fails_at": fails_at}
    trials = run(Track(), good={"seconds": lambda turn: 1.0 + 0.1 * (turn % 2)}, bad=bad, other=steady(1.2))
    assert trials["bad"].status == "crash"
    assert decide(list(trials.values())).choice.single == "good"
    assert trials["other"].status == SLOWER


def test_one_that_fails_late_leaves_the_first_to_win() -> None:
    trials = run(Track(), good=steady(1.0), bad={**steady(0.1), "fails_at": 4})
    assert decide(list(trials.values())).choice.single == "good"


def test_a_hang_costs_a_third_of_the_budget() -> None:
    track = Track()
    trials = run(track, 90.0, first=steady(1.0), hang={**steady(0.1), "start_s": 1e9}, last=steady(0.9))
    assert trials["hang"].status == "timeout"
    assert trials["last"].status == MEASURED
    assert track.now < 60.0


def test_the_budget_is_held() -> None:
    track = Track()
    runners = {f"r{number}": {**steady(1.0), "start_s": 10.0} for number in range(9)}
    trials = run(track, 40.0, **runners)
    assert [trial.status for trial in trials.values()].count("no_time") == 6
    assert track.now < 42.0


def test_all_are_closed_when_showing_fails() -> None:
    track = Track()
    fake = Fake("only", track, lambda turn: 1.0)

    def show(text: str, share: float) -> None:
        if share > race_module.STARTING_SHARE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        candidates = [Candidate(Choice(single="only"), 1.0), Candidate(Choice(single="other"), 1.0)]
        race(
            candidates,
            lambda choice: (fake if choice.single == "only" else Fake("other", track, lambda turn: 1.0)).started(),
            60.0,
            show,
        )
    assert track.closed == {"only", "other"}


def test_further_candidates_run_after_those_that_were_there(monkeypatch) -> None:
    track = Track()
    fakes = {name: Fake(name, track, lambda turn: 1.0) for name in ("first", "better")}
    fakes["better"].seconds = lambda turn: 0.5
    asked = []

    def further(showings):
        asked.append([(showing.candidate.choice.single, showing.seconds) for showing in showings])
        return Candidate(Choice(single="better"), 0.4) if len(asked) == 1 else None

    candidates = [Candidate(Choice(single="first"), 1.0)]
    trials = race(
        candidates, lambda choice: fakes[choice.single].started(), 1000.0, further=further, clock=lambda: track.now
    )
    assert asked == [[("first", 1.0)], [("first", 1.0), ("better", 0.5)]]
    assert decide(trials).choice.single == "better"


def test_what_the_machine_did_to_one_turn_teaches_nothing() -> None:
    """A slow first turn is not what the candidate takes, and the final begins anew."""
    track = Track()
    slow_start = Fake("first", track, lambda turn: 5.0 if turn == 1 else 1.0)
    seen = []

    def further(showings):
        seen.extend(showings)

    candidates = [Candidate(Choice(single="first"), 1.0)]
    (trial,) = race(candidates, lambda choice: slow_start.started(), 60.0, further=further, clock=lambda: track.now)
    assert [(showing.seconds, showing.regions) for showing in seen] == [(1.0, [{"measured_s": 1.0}])]
    assert trial.rounds_s == (5.0, 1.0, 1.0), "alone there is no final"
    trials = run(Track(), first={"seconds": lambda turn: 5.0 if turn <= HEATS else 1.0}, other=steady(1.0))
    assert trials["first"].rounds_s == (1.0,) * 3


def test_a_plan_that_was_repaired_meanwhile_is_what_it_is_now() -> None:
    """A region failed, so there are more of them from the second turn on: that ends no race."""

    class Repaired(Fake):
        def tell(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
            answer = super().tell(message, timeout_s)
            return {**answer, "regions": answer["regions"] * min(2, self.track.turns[self.name])}

    seen = []
    runner = Repaired("first", Track(), lambda turn: 4.0 - turn)

    def further(showings):
        seen.extend(showings)

    candidates = [Candidate(Choice(single="first"), 1.0)]
    race(candidates, lambda choice: runner.started(), 60.0, further=further, clock=lambda: runner.track.now)
    assert [showing.regions for showing in seen] == [[{"measured_s": 1.0}, {"measured_s": 1.0}]]


def test_nobody_is_asked_for_more_when_the_budget_is_spent() -> None:
    track = Track()
    candidates = [Candidate(Choice(single=name), 1.0) for name in ("a", "b", "c")]

    def further(showings):
        raise AssertionError("asked")

    runners = {name: Fake(name, track, lambda turn: 1.0, start_s=9.0) for name in ("a", "b", "c")}
    trials = race(
        candidates, lambda choice: runners[choice.single].started(), 30.0, further=further, clock=lambda: track.now
    )
    assert [trial.status for trial in trials] == [MEASURED, MEASURED, "timeout"]


def test_who_leaves_is_told_at_once() -> None:
    track = Track()
    told: list[tuple[str, str]] = []
    names = {"first": 1.0, "slow": 2.5, "near": 1.2, "bad": 1.0}
    fakes = {
        name: Fake(name, track, lambda turn, s=s: s, fails_at=0 if name == "bad" else -1) for name, s in names.items()
    }
    race(
        [Candidate(Choice(single=name), 1.0) for name in names],
        lambda choice: fakes[choice.single].started(),
        1000.0,
        on_trial=lambda trial: told.append((trial.choice.single, trial.status)),
        clock=lambda: track.now,
    )
    assert told == [("slow", SLOWER), ("bad", "crash"), ("near", SLOWER)]
