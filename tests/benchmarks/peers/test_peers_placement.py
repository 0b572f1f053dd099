"""The mixture against the single backends: slower or not, how sure that is, what the rows come to."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from mixbackend.benchmarks.one_model.timing import Ratio
from mixbackend.benchmarks.peers.comparing import geometric_mean, noise_of
from mixbackend.benchmarks.peers.placement import over_singles, summarise_singles
from mixbackend.benchmarks.peers.summary import summarise
from mixbackend.benchmarks.peers.tables import print_peers

STEADY = (0.0, 0.001, -0.001, 0.002, -0.002, 0.001, -0.001, 0.0)
"""Deviations of rounds, relative."""


def record(peer: str, seconds: float, deviations: tuple[float, ...] = STEADY, **facts: Any) -> dict[str, Any]:
    rounds = [seconds * (1.0 + deviation) for deviation in deviations]
    return {"peer": peer, "status": "pass", "rounds_s": rounds, "turns": "t", "anchor_rounds_s": rounds, **facts}


def right(**seconds: float) -> dict[str, dict[str, Any]]:
    """Records of steady peers; ``only_x`` stands for ``only-x``."""
    return {name.replace("_", "-"): record(name.replace("_", "-"), value) for name, value in seconds.items()}


def test_the_best_single_is_eager_or_a_backend_and_no_rival() -> None:
    rows = over_singles(right(eager=3.0, only_a=2.0, only_b=2.5, openvino=1.0, mixture=1.0, tuned=2.0))
    assert rows["mixture"]["best_single"] == "only-a" and rows["mixture"]["ratio"] == pytest.approx(2.0, rel=0.01)
    assert rows["tuned"]["ratio"] == pytest.approx(1.0, rel=0.01) and not rows["tuned"]["slower_beyond_noise"]
    assert over_singles(right(eager=1.0, only_a=2.0, mixture=2.0))["mixture"]["best_single"] == "eager"
    assert over_singles(right(eager=1.0, mixture=2.0)) == {}, "no backend was timed alone"


def test_noise_is_two_standard_errors_of_the_median() -> None:
    ratio = Ratio(1.0, 0.99, 1.01)
    assert noise_of(ratio, 16) == pytest.approx(2 * 1.2533 * 0.02 / 1.349 / 4)
    assert noise_of(Ratio(2.0, 1.98, 2.02), 16) == pytest.approx(noise_of(ratio, 16))
    assert noise_of(ratio, 3) is None


@pytest.mark.parametrize(
    ("ours", "seconds", "beyond_noise", "beyond_limit"),
    [
        ("tuned", 1.02, True, False),
        ("tuned", 1.04, True, True),
        ("mixture", 1.04, True, False),
        ("mixture", 1.12, True, True),
        ("tuned", 1.0005, False, False),
        ("tuned", 0.9, False, False),
    ],
)
def test_slower_counts_beyond_noise_and_beyond_the_limit(
    ours: str, seconds: float, beyond_noise: bool, beyond_limit: bool
) -> None:
    other = record("only-a", 1.0)
    mine = record(ours, seconds, tuple(reversed(STEADY)))
    row = over_singles({"only-a": other, ours: mine})[ours]
    assert 0.0 < row["noise"] < 0.01 and not row["too_noisy"]
    assert (row["slower_beyond_noise"], row["slower_beyond_limit"]) == (beyond_noise, beyond_limit)


def test_a_noisy_difference_does_not_count_and_is_said_to_be_noisy() -> None:
    wild = (0.0, 0.3, -0.3, 0.25, -0.25, 0.2, -0.2, 0.1)
    row = over_singles({"only-a": record("only-a", 1.0), "tuned": record("tuned", 1.05, wild)})["tuned"]
    assert row["too_noisy"] and not row["slower_beyond_limit"]
    few = over_singles({"only-a": record("only-a", 1.0, (0.0,)), "tuned": record("tuned", 1.2, (0.0,))})["tuned"]
    assert few["noise"] is None and few["too_noisy"] and not few["slower_beyond_noise"]


def test_the_same_placement_is_recognised() -> None:
    same = {"parts": {"placement": "p"}}
    records = {"only-a": record("only-a", 1.0, **same), "tuned": record("tuned", 1.0, **same)}
    assert over_singles(records)["tuned"]["same_placement"] is True
    records["tuned"]["parts"] = {"placement": "q"}
    assert over_singles(records)["tuned"]["same_placement"] is False
    assert over_singles(right(eager=1.0, only_a=2.0, tuned=1.0))["tuned"]["same_placement"] is None


def rows(*ratios: float) -> list[tuple[str, dict[str, Any], tuple[str, ...]]]:
    peers = ("eager", "only-a", "mixture", "tuned")
    others = {name: record(name, 1.0) for name in ("mixture", "tuned")}
    return [(f"case {ratio}", over_singles({"only-a": record("only-a", ratio), **others}), peers) for ratio in ratios]


def test_summaries_state_mean_least_and_who_is_slower() -> None:
    found = summarise_singles(rows(2.0, 0.95, 1.0))
    assert found["tuned"]["geometric_mean"] == pytest.approx(1.9 ** (1 / 3), rel=0.01)
    assert (found["tuned"]["least_at"], found["tuned"]["slower_beyond_limit"]) == ("case 0.95", ["case 0.95"])
    assert found["tuned"]["met"] is False and found["mixture"]["met"] is True
    assert found["mixture"]["slower_beyond_noise"] == ["case 0.95"]
    assert summarise_singles(rows(0.95))["mixture"]["met"] is False, "its mean gain is below one"


def test_a_case_without_figures_leaves_the_goal_open() -> None:
    found = summarise_singles([*rows(1.2), ("failed", {}, ("eager", "only-a", "tuned"))])
    assert found["tuned"]["missing"] == ["failed"] and found["tuned"]["met"] is None
    assert found["mixture"]["met"] is True, "it was not asked for there"
    assert summarise_singles([("x", {}, ("eager", "tuned"))]) == {}, "nothing to compare with was asked for"
    assert geometric_mean([]) is None


def test_the_value_and_the_tables_tell_it() -> None:
    case = {"model": "suite:m", "batch": 0, "phase": "inference", "dtype": "float32", "detail": ""}
    records = [{**item, **case} for item in right(eager=3.0, only_a=1.0, mixture=0.9, tuned=1.05).values()]
    value = summarise(records, {}, {})
    assert value["singles"]["tuned"]["slower_beyond_limit"] == ["suite:m"]
    assert value["summary"]["inference float32"]["singles"]["mixture"]["met"] is True
    screen = Console(file=io.StringIO(), width=240)
    print_peers(value, screen)
    text = screen.file.getvalue()
    for expected in (
        "own", "beyond the limit", "not slower",
        "mixture over the best of eager and the single backends: 1.111, geometric mean of 1",
        "tuned, slower by more than 3%: 1 (suite:m)", "tuned, goal: missed", "mixture, goal: met",
    ):  # fmt: skip
        assert expected in text, expected
