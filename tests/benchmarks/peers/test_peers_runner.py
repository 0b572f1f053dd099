"""What a results file spares: cases by model, peers by name, ours by our sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mixbackend.benchmarks.peers import runner
from mixbackend.benchmarks.peers.request import PeerCase
from mixbackend.benchmarks.peers.turns import Options
from mixbackend.benchmarks.results import ResultFile

ONE, TWO = (PeerCase(name, 1, "inference", "float32") for name in ("one", "two"))
OPTIONS = Options(backends=("codegen",))


class Cases:
    """Stands for ``time_case``: remembers what was asked, and fails where told to."""

    def __init__(self, fail_at: PeerCase | None = None) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self._fail_at = fail_at

    def __call__(self, case: PeerCase, peers: Sequence[str], options: Options, show: Any) -> dict[str, dict[str, Any]]:
        if case == self._fail_at:
            raise KeyboardInterrupt
        self.asked.append((case.model, tuple(peers)))
        everybody = dict.fromkeys(("eager", *peers))
        return {peer: {"status": "pass", "rounds_s": [float(len(self.asked))]} for peer in everybody}


def run(file: Path, cases: Cases, peers: Sequence[str], label: str = "", options: Options = OPTIONS) -> list[Any]:
    return runner.run([ONE, TWO], peers, options, ResultFile(file), label, lambda text, behind_s: None, cases)


def test_a_run_that_was_stopped_goes_on_with_the_next_model(tmp_path: Path) -> None:
    stopped, resumed = Cases(fail_at=TWO), Cases()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "f.jsonl", stopped, ["eager", "mixture"])
    records = run(tmp_path / "f.jsonl", resumed, ["eager", "mixture"])
    assert resumed.asked == [("two", ("eager", "mixture"))]
    assert [(record["model"], record["peer"]) for record in records] == [
        ("one", "eager"), ("one", "mixture"), ("two", "eager"), ("two", "mixture"),
    ]  # fmt: skip


def test_only_new_peers_run_and_the_anchor_is_not_written_over(tmp_path: Path) -> None:
    run(tmp_path / "f.jsonl", Cases(), ["eager", "openvino"])
    again = Cases()
    records = run(tmp_path / "f.jsonl", again, ["eager", "openvino", "inductor"])
    assert again.asked == [("one", ("inductor",)), ("two", ("inductor",))]
    eager = [record for record in records if record["peer"] == "eager"]
    assert [record["rounds_s"] for record in eager] == [[1.0], [2.0]]


def test_changed_sources_make_only_ours_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = ["eager", "openvino", "mixture", "only-codegen"]
    run(tmp_path / "f.jsonl", Cases(), peers)
    monkeypatch.setattr(runner, "code_version", lambda: "other sources")
    again = Cases()
    run(tmp_path / "f.jsonl", again, peers)
    assert again.asked == [("one", ("mixture", "only-codegen")), ("two", ("mixture", "only-codegen"))]


def test_a_label_keeps_results_of_changing_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "f.jsonl", Cases(), ["mixture"], label="kept")
    monkeypatch.setattr(runner, "code_version", lambda: "other sources")
    again = Cases()
    run(tmp_path / "f.jsonl", again, ["mixture"], label="kept")
    assert again.asked == []


def test_other_settings_are_other_results(tmp_path: Path) -> None:
    keys = {
        runner.record_key(ONE, "mixture", options, "")
        for options in (
            OPTIONS,
            Options(("codegen",), threads=1),
            Options(("codegen",), rounds=9),
            Options(("codegen",), seconds=2.0),
            Options(("codegen",), environment="command"),
        )
    }
    assert len(keys) == 5
    command = Options(("codegen",), environment="command")
    assert runner.record_key(ONE, "openvino", OPTIONS, "") == runner.record_key(ONE, "openvino", command, "")
    skipped = Options(("codegen",), guards="skipped")
    same = {
        peer: runner.record_key(ONE, peer, OPTIONS, "") == runner.record_key(ONE, peer, skipped, "")
        for peer in ("eager", "openvino", "onnxruntime", "inductor", "mixture", "only-codegen")
    }
    assert [peer for peer in same if same[peer]] == ["eager", "openvino", "onnxruntime"], "exported models have none"


def test_nothing_left_is_no_time_left(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "f.jsonl")
    before = runner.plan([ONE, TWO], ["eager", "inductor"], OPTIONS, file, "")
    assert len(before.work) == 2 and before.expected_s > 100
    run(tmp_path / "f.jsonl", Cases(), ["eager", "inductor"])
    assert runner.plan([ONE, TWO], ["eager", "inductor"], OPTIONS, ResultFile(file.path), "").expected_s == 0


def test_cases_are_inference_by_batch_and_training_at_the_models_own() -> None:
    cases = runner.cases_for(["a", "b"], ["b"], [1, 8], ["inference", "training"], ["float32"], lambda name: 4)
    assert [(case.model, case.batch, case.phase) for case in cases] == [
        ("a", 1, "inference"), ("a", 8, "inference"), ("b", 1, "inference"), ("b", 8, "inference"),
        ("b", 4, "training"),
    ]  # fmt: skip


def test_models_of_the_suite_run_at_their_own_size() -> None:
    cases = runner.cases_for(["suite:x"], ["suite:x"], [1, 8], ["inference", "training"], ["float32"], lambda name: 0)
    assert [(case.batch, case.phase) for case in cases] == [(0, "inference"), (0, "training")]
    assert str(cases[0]) == "suite:x inference float32"


def test_no_case_begins_when_time_is_over(tmp_path: Path) -> None:
    cases, over = Cases(), iter((False, True))
    file = ResultFile(tmp_path / "f.jsonl")
    records = runner.run(
        [ONE, TWO], ["eager"], OPTIONS, file, "", lambda text, behind_s: None, cases, lambda: next(over)
    )
    assert cases.asked == [("one", ("eager",))] and [record["model"] for record in records] == ["one"]
    assert [case.model for case, _ in runner.plan([ONE, TWO], ["eager"], OPTIONS, file, "").work] == ["two"]


def test_limits_are_the_highest_rates_known(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"

    def limits(**found: Any) -> dict[str, float]:
        return runner.best_limits("float32", 0, found, ResultFile(file))

    assert limits(status="crash") == {}
    assert limits(status="pass", flops_per_s=5.0, bytes_per_s=2.0) == {"flops_per_s": 5.0, "bytes_per_s": 2.0}
    assert limits(status="pass", flops_per_s=4.0, bytes_per_s=3.0) == {"flops_per_s": 5.0, "bytes_per_s": 3.0}
    assert limits(status="timeout") == {"flops_per_s": 5.0, "bytes_per_s": 3.0}
    assert runner.best_limits("bfloat16", 0, {"status": "timeout"}, ResultFile(file)) == {}
