"""Winners, ratios, means, limits and goals; the JSON value and the tables."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from mixbackend.benchmarks.peers.comparing import best_of, comparable_rounds
from mixbackend.benchmarks.peers.summary import summarise
from mixbackend.benchmarks.peers.tables import print_peers

MACHINE = {"float32": {"flops_per_s": 100e9, "bytes_per_s": 10e9}}
WORK = {"flops": 100_000_000, "bytes": 20_000_000}  # 1 ms of computing, 2 ms of memory
PARTS = {
    "graphs": 1,
    "backends": {"codegen": {"regions": 1, "nodes": 3, "measured_s": 0.001, "ops": {"aten.add": 3}, "modules": "m"}},
    "profile": [{"id": "r0", "phase": "inference", "backend": "codegen", "measured_s": 0.001, "estimated_s": 0.002,
                 "ops": "add x3", "modules": "m"}],
    "measured_s": 0.0015,
    "regions": 1,
    "regions_from_cache": 1,
}  # fmt: skip


def record(peer: str, *rounds: float, model: str = "m", status: str = "pass", **facts: Any) -> dict[str, Any]:
    known = {
        "model": model, "batch": 1, "phase": "inference", "dtype": "float32", "peer": peer, "status": status,
        "detail": "", "rounds_s": list(rounds), "anchor_rounds_s": [0.008, 0.008, 0.008], "turns": "t1", "work": WORK,
        "first_call_s": 1.5, "new_kernels": 0, "cores_of_others": 0.1,
    }  # fmt: skip
    return {**known, **facts}


def usual(mixture: float = 0.004, **facts: Any) -> list[dict[str, Any]]:
    return [
        record("eager", 0.008, 0.008, 0.008, **facts),
        record("inductor", 0.0081, 0.008, 0.0079, **facts),
        record("inductor-freezing", 0.0072, 0.0072, 0.0072, **facts),
        record("openvino", 0.005, 0.005, 0.005, **facts),
        record("mixture", mixture, mixture, mixture, parts=PARTS, **facts),
    ]


def value(records: list[dict[str, Any]]) -> dict[str, Any]:
    return summarise(records, MACHINE, {"rounds": 3})


def test_winner_ratios_and_limits() -> None:
    (case,) = value(usual())["cases"]
    assert (case["winner"], case["best_rival"]) == ("mixture", "openvino")
    assert case["over"]["mixture"]["rivals"] == {
        "peer": "openvino", "median": 1.25, "low": 1.25, "high": 1.25, "noise": None, "runs_apart": False,
    }  # fmt: skip
    assert case["over"]["mixture"]["inductor"]["peer"] == "inductor-freezing"
    assert case["over"]["mixture"]["inductor"]["median"] == pytest.approx(1.8)
    assert (case["limits"]["compute_s"], case["limits"]["bandwidth_s"], case["limits"]["least_s"]) == (1e-3, 2e-3, 2e-3)
    assert case["peers"]["mixture"]["share_of_limit"] == pytest.approx(0.5)
    assert case["parts"]["mixture"]["backends"]["codegen"]["nodes"] == 3
    assert case["parts"]["mixture"]["beyond_regions_s"] == pytest.approx(0.0025)


def test_wrong_peers_keep_their_time_and_never_win() -> None:
    records = [*usual(), record("onnxruntime", 0.001, 0.001, 0.001, status="wrong")]
    records[-1]["detail"] = "output 0: far off"
    result = value(records)
    (case,) = result["cases"]
    assert (case["winner"], case["best_rival"]) == ("mixture", "openvino")
    assert case["peers"]["onnxruntime"]["median_s"] == 0.001
    (problem,) = result["summary"]["inference float32"]["problems"]
    assert (problem["peer"], problem["status"], problem["detail"]) == ("onnxruntime", "wrong", "output 0: far off")


def test_a_wrong_mixture_has_no_ratio() -> None:
    records = usual()
    records[-1]["status"] = "wrong"
    (case,) = value(records)["cases"]
    assert case["over"] == {} and case["winner"] == "openvino" and case["parts"] == {}


def test_peers_of_different_runs_are_compared_through_eager() -> None:
    later = record("mixture", 0.008, 0.008, 0.008, turns="t2", anchor_rounds_s=[0.016, 0.016, 0.016])
    records = {item["peer"]: item for item in (*usual()[:4], later)}
    assert comparable_rounds(records, ("openvino", "mixture"))["mixture"] == (0.5, 0.5, 0.5)
    assert comparable_rounds(records, ("openvino", "eager"))["openvino"] == (0.005, 0.005, 0.005)
    assert best_of(records, ("openvino", "mixture")) == "mixture"
    (case,) = value(list(records.values()))["cases"]
    assert case["over"]["mixture"]["rivals"]["median"] == pytest.approx(1.25)
    assert case["over"]["mixture"]["rivals"]["runs_apart"] is True


def test_runs_apart_without_eager_cannot_be_compared() -> None:
    records = {
        "openvino": record("openvino", 0.005, anchor_rounds_s=[]),
        "mixture": record("mixture", 0.004, turns="t2", anchor_rounds_s=[]),
    }
    assert best_of(records, ("openvino", "mixture")) is None
    (case,) = value(list(records.values()))["cases"]
    assert case["winner"] is None and case["over"]["mixture"]["rivals"] is None


def test_goals_say_by_how_much_they_are_missed() -> None:
    summary = value([*usual(), *usual(0.008, model="n")])["summary"]["inference float32"]
    mean = summary["geometric_means"]["mixture"]["rivals"]
    assert mean["geometric_mean"] == pytest.approx((1.25 * 0.625) ** 0.5)
    assert (mean["least"], mean["least_at"], mean["cases"]) == (pytest.approx(0.625), "n batch 1", 2)
    rivals, inductor, without, *tuned = summary["goals"]
    assert rivals["met"] is False and rivals["missing"] == pytest.approx(0.9 / 0.625)
    assert inductor["met"] is False and inductor["missing"] == pytest.approx(1.8 / (1.8 * 0.9) ** 0.5)
    assert without["met"] is None
    assert [(goal["ours"], goal["met"]) for goal in tuned] == [
        ("tuned", None), ("tuned", None), ("tuned-without-openvino", None),
    ]  # fmt: skip
    assert summary["wins"] == {"mixture": 1, "openvino": 1}
    met = value(usual())["summary"]["inference float32"]["goals"][0]
    assert met["met"] is True and met["missing"] == 1.0


def test_training_has_its_own_goal() -> None:
    records = usual(phase="training")
    goal, tuned = value(records)["summary"]["training float32"]["goals"]
    assert tuned == {**goal, "ours": "tuned", "met": None, "missing": None, "reached": None}
    assert (goal["against"], goal["geometric_mean"], goal["least"], goal["met"]) == ("inductor", 1.5, 1.0, True)


def test_first_calls_know_whether_caches_were_warm() -> None:
    records = [
        *usual()[:1],
        record("inductor", 0.01, new_kernels=3),
        record("inductor-freezing", 0.01),
        record("mixture", 0.01, parts=PARTS),
        record("only-codegen", 0.01, parts={**PARTS, "regions_from_cache": 0}),
    ]
    (case,) = value(records)["cases"]
    warm = {name: peer["first_call_warm"] for name, peer in case["peers"].items()}
    assert warm == {
        "eager": None, "inductor": False, "inductor-freezing": True, "mixture": True, "only-codegen": False,
    }  # fmt: skip


def test_the_value_is_plain_json_of_one_schema() -> None:
    refused = {**record("onnxruntime"), "status": "refused", "detail": "no bfloat16"}
    for key in ("rounds_s", "work", "turns", "anchor_rounds_s", "first_call_s", "new_kernels", "cores_of_others"):
        del refused[key]
    result = json.loads(json.dumps(value([*usual(), refused]), allow_nan=False))
    assert set(result) == {"schema", "settings", "machine", "cases", "summary", "singles"} and result["schema"] == 1
    (case,) = result["cases"]
    assert set(case) == {
        "model", "batch", "phase", "dtype", "winner", "best_rival", "over", "over_singles", "limits", "peers",
        "parts",
    }  # fmt: skip
    assert set(case["peers"]["openvino"]) == set(case["peers"]["onnxruntime"]) == {
        "status", "detail", "median_s", "spread", "rounds_s", "share_of_limit", "first_call_s", "first_call_warm",
        "new_kernels", "warm_up", "peak_memory_bytes", "cores_of_others",
    }  # fmt: skip
    assert result["summary"]["inference float32"]["problems"] == []


def test_tables() -> None:
    records = [
        *usual(),
        record("onnxruntime", 0.001, 0.001, status="wrong"),
        {**record("inductor-max-autotune"), "status": "timeout", "first_call_s": None, "detail": "no answer\nin time"},
    ]
    screen = Console(file=io.StringIO(), width=240)
    print_peers(value(records), screen)
    text = screen.file.getvalue()
    for expected in (
        "4 ±0% *", "1 ±0% wrong", "timeout", "1.25 (1.25..1.25)", "1.50 w", "codegen 3 nodes 1 ms", "2.5 ms", "50%",
        "codegen 1 ms (add x3)",
        "mixture over the best of rivals: 1.250", "mixture at least 1 times the best of rivals, none below 0.9: met",
        "mixture-without-openvino at least 0.95 times the best of rivals: no figures", "winners: mixture 1",
        "inductor-max-autotune: timeout: no answer in time",
    ):  # fmt: skip
        assert expected in text, expected
