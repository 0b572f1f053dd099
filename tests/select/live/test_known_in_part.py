"""What a process found before it ended: the next one begins with it, and tries only what is left."""

from __future__ import annotations

import json

import pytest
from simulated_machine import Machine, challenger

from mixbackend.plan.choice import Choice
from mixbackend.select.decision import FORMAT, MEASURED, UNTUNED, Decision, Trial, joined
from mixbackend.select.live.allowance import LEAST_S
from mixbackend.select.live.arbiter import Arbiter
from mixbackend.select.live.overlaps import Overlaps
from mixbackend.select.live.selection import Selection

FIRST = Choice(name="mixture")


def names(decision: Decision) -> tuple[str, list[str], list[str]]:
    return (
        str(decision.choice),
        [str(trial.choice) for trial in decision.trials],
        [str(item.choice) for item in decision.waiting],
    )


def trial(name: str, *rounds: float) -> Trial:
    return Trial(Choice(single=name), 0.1, MEASURED, rounds_s=rounds)


def kept(decision: Decision) -> Decision:
    """As the store gives it to another process."""
    return Decision.read(json.loads(json.dumps(decision.to_dict())))


def until_concluded(machine: Machine, count: int) -> Decision:
    while len(machine.selection.standing().happened) < count:
        machine.call()
    return machine.selection.decision()


def test_each_process_goes_on_where_the_last_one_ended() -> None:
    speeds = {"mixture": 0.04, "b1": 0.05, "b2": 0.03, "b3": 0.02}
    machine = Machine(list(speeds.values()), estimates=[0.04] * 4)
    found = kept(until_concluded(machine, 1))
    assert names(found) == ("mixture", ["mixture", "b1"], ["b2", "b3"])

    second = Machine([speeds["mixture"], speeds["b2"], speeds["b3"]], known=found)
    found = kept(until_concluded(second, 1))
    assert names(found) == ("b2", ["mixture", "b1", "b2"], ["b3"]), "who won is found at once"

    third = Machine([speeds["b2"], speeds["b3"]], known=found)
    assert third.settle() == 1
    last = kept(third.selection.decision())
    assert names(last) == ("b3", ["mixture", "b1", "b2", "b3"], [])
    assert all(item.rounds_s for item in last.trials)


def test_who_is_tried_when_the_process_ends_is_tried_again() -> None:
    machine = Machine([0.04, 0.03, 0.02], estimates=[0.04] * 3)
    while not machine.selection.trying:
        machine.call()
    assert names(machine.selection.decision()) == ("mixture", [], ["b1", "b2"])


def selection(*challengers: str) -> Selection:
    items = [challenger(name, 0.1, build_s=place) for place, name in enumerate(challengers)]
    made = Selection(0.1, items, Arbiter(), Overlaps(), 0.0)
    made.ran(100, 2.0 * LEAST_S, 1.0)
    return made


def test_what_cannot_be_built_here_and_now_is_left_to_others() -> None:
    """A budget that is used up says nothing of a challenger; a compiler that refuses it does."""
    tried = selection("poor", "refused", "last")
    for why, later in (("budget: all is used", True), ("failed: not this one", False)):
        wanted = tried.wanted(2.0)
        assert wanted is not None
        tried.unbuilt(wanted, why, later)
    assert names(tried.decision()) == ("mixture", ["refused"], ["last", "poor"])
    assert [item.change for item in tried.standing().happened] == ["out", "out"]
    tried.stop()
    assert tried.settled(0.0) and names(tried.decision())[2] == ["poor", "last"]


def test_a_comparison_that_was_stopped_decides_nothing() -> None:
    tried = selection("one", "two")
    wanted = tried.wanted(2.0)
    assert wanted is not None and tried.built(wanted)
    tried.stop()
    assert tried.settled(0.0) and names(tried.decision()) == ("mixture", [], ["one", "two"])


def test_formats_of_the_store() -> None:
    decision = Decision(FIRST, (trial("a", 1.0),), (challenger("b", 0.1, always=True),))
    plain = decision.to_dict()
    assert kept(decision) == decision and plain["format"] == FORMAT
    assert Decision.read({**plain, "format": FORMAT + 1}) is UNTUNED
    older = {name: plain[name] for name in ("choice", "trials")}
    assert Decision.read(older) == Decision(FIRST, decision.trials), "who was decided before is decided"
    for broken in ({"choice": 1}, {**plain["waiting"][0], "error": "x"}, 3):
        assert Decision.read({**plain, "waiting": [broken]}) is UNTUNED


@pytest.mark.parametrize(
    ("known", "found", "both"),
    [
        (([], []), (["a"], ["b"]), ("mixture", ["a"], ["b"])),
        ((["a"], ["b", "c"]), (["b"], ["a", "c"]), ("mixture", ["a", "b"], ["c"])),
        ((["a", "b"], []), (["a"], ["b"]), ("mixture", ["a", "b"], [])),
    ],
)
def test_processes_at_the_same_time_lose_nothing_of_one_another(
    known: tuple[list[str], list[str]], found: tuple[list[str], list[str]], both: tuple[str, list[str], list[str]]
) -> None:
    def decision(trials: list[str], waiting: list[str]) -> Decision:
        left = tuple(challenger(name, 0.1) for name in waiting)
        return Decision(FIRST, tuple(trial(name, 1.0) for name in trials), left) if trials else UNTUNED

    assert names(joined(decision(*known), decision(*found))) == both


def test_who_has_tried_everybody_knows_best() -> None:
    settled = Decision(Choice(single="b"), (trial("a", 1.0), trial("b", 0.5)))
    began_before = Decision(FIRST, (trial("a", 1.0),), (challenger("b", 0.1),))
    assert joined(settled, began_before) is settled
    assert joined(began_before, settled) is settled
