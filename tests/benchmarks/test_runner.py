"""Cases, the results file, and the run itself with a stand-in for the worker."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mixbackend.benchmarks import runner
from mixbackend.benchmarks.machine_rates import FROZEN_RATES
from mixbackend.benchmarks.one_model.placements import summarise
from mixbackend.benchmarks.one_model.protocol import Request, request_from_line
from mixbackend.benchmarks.results import ResultFile, code_version, key_of
from mixbackend.benchmarks.runner import Case, SuiteOptions, cases, check_case, run_cases, run_suite
from mixbackend.benchmarks.staff import OutOfTimeError
from mixbackend.benchmarks.suite import is_our_failure, main


def quiet() -> Console:
    return Console(file=io.StringIO())


@pytest.fixture
def options(tmp_path: Path) -> SuiteOptions:
    return SuiteOptions(models=("lennard_jones", "dcgan"), output=tmp_path / "r" / "suite.jsonl", label="test")


def test_cases_follow_names_families_and_phases(options: SuiteOptions) -> None:
    assert [(case.model, case.phase) for case in cases(options)] == [
        ("lennard_jones", "inference"),
        ("lennard_jones", "training"),
        ("dcgan", "inference"),
        ("dcgan", "training"),
    ]
    everything = cases(SuiteOptions())
    assert len(everything) == 193 + 191
    assert {case.family for case in cases(SuiteOptions(families=("hf",)))} == {"hf"}
    assert cases(replace(options, models=("pyhpc_equation_of_state",), phases=("training",))) == []


@pytest.mark.parametrize("wrong", [{"models": ("nope",)}, {"families": ("nlp",)}])
def test_unknown_names_are_refused(options: SuiteOptions, wrong: dict) -> None:
    with pytest.raises(KeyError):
        cases(replace(options, **wrong))


def test_a_second_run_takes_what_the_first_left(options: SuiteOptions) -> None:
    ran: list[Case] = []

    def work(case: Case, options: SuiteOptions, show: Callable[[str], None]) -> dict:
        ran.append(case)
        return {"status": "pass" if case.phase == "inference" else "fail_accuracy", "detail": ""}

    first = run_cases("accuracy", work, options, quiet())
    assert len(ran) == len(first) == 4
    assert run_cases("accuracy", work, options, quiet()) == first
    assert len(ran) == 4
    run_cases("accuracy", work, replace(options, retry_failed=True), quiet())
    assert len(ran) == 6
    run_cases("accuracy", work, replace(options, configuration={"backends": ["eager"]}), quiet())
    assert len(ran) == 10
    assert len(options.output.read_text().splitlines()) == 10


def test_cases_without_time_have_no_record(options: SuiteOptions) -> None:
    def work(case: Case, options: SuiteOptions, show: Callable[[str], None]) -> dict:
        if case.model == "dcgan":
            raise OutOfTimeError
        return {"status": "pass", "detail": ""}

    console = quiet()
    assert [record["model"] for record in run_cases("accuracy", work, options, console)] == ["lennard_jones"] * 2
    assert "no time for 2 cases" in console.file.getvalue()
    assert "lennard_jones training float32 pass" in console.file.getvalue()


def test_a_failure_without_time_to_ask_aot_eager_is_kept(options: SuiteOptions) -> None:
    def ask(request: Request, timeout_s: float) -> dict:
        if request.backend == "aot_eager":
            raise OutOfTimeError
        return {"status": "crash", "detail": "why"}

    record = check_case(Case("dcgan", "torchbench", "training"), options, lambda text: None, ask)
    assert (record["status"], record["aot_eager"]) == ("crash", None)


def test_on_a_gpu_rates_are_measured_first_and_then_frozen(
    options: SuiteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    class Recorded:
        def __init__(self, module: str, most: int, threads: int, variables: dict, end: float) -> None:
            seen.append((most, variables))
            self.ask = lambda request, timeout_s: {"status": "pass", "detail": request.device}

        def __enter__(self) -> Recorded:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(runner, "calibrate", lambda budget_s: seen.append(budget_s))
    monkeypatch.setattr(runner, "Staff", Recorded)
    on_gpu = replace(options, device="cuda", precisions=("amp",), keep=7, calibration_s=33.0, jobs=1)
    records = run_suite(on_gpu, quiet())
    assert {record["detail"] for record in records} == {"cuda"}
    assert seen[0] == 33.0
    assert seen[1][0] == 7
    assert {"CUBLAS_WORKSPACE_CONFIG", *FROZEN_RATES} < set(seen[1][1])
    seen.clear()
    run_suite(replace(options, precisions=("amp",)), quiet())
    assert seen == [(1, {})]


def test_a_torn_last_line_is_dropped_and_a_foreign_file_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"key": "a", "status": "pass"}) + '\n{"key": "b", "sta')
    file = ResultFile(path)
    assert file.get("a") == {"key": "a", "status": "pass"}
    assert file.get("b") is None
    file.append({"key": "c"})
    assert ResultFile(path).get("c") == {"key": "c"}
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"results\.jsonl:1"):
        ResultFile(path)


def test_keys_tell_apart_everything_that_matters() -> None:
    base = ("accuracy", "m", "training", "mixbackend", {"configuration": {}}, "1")
    variants = [
        ("speed", *base[1:]),
        (base[0], "n", *base[2:]),
        (*base[:2], "inference", *base[3:]),
        (*base[:3], "inductor", *base[4:]),
        (*base[:4], {"configuration": {"backends": ["eager"]}}, "1"),
        (*base[:5], "2"),
    ]
    assert len({key_of(*base), *(key_of(*variant) for variant in variants)}) == 7
    assert code_version() == code_version()


def test_only_failures_are_asked_again_with_aot_eager(options: SuiteOptions) -> None:
    asked: list[str] = []
    statuses = {"mixbackend": "crash", "aot_eager": "failed"}

    def ask(request: Request, timeout_s: float) -> dict:
        asked.append(request.backend)
        return {"status": statuses[request.backend], "detail": "why"}

    case = Case("dcgan", "torchbench", "training")
    record = check_case(case, options, lambda text: None, ask)
    assert asked == ["mixbackend", "aot_eager"]
    assert record["aot_eager"] == {"status": "failed", "detail": "why"}
    assert not is_our_failure(record)
    statuses["mixbackend"] = "pass"
    assert check_case(case, options, lambda text: None, ask)["aot_eager"] is None
    assert asked[2:] == ["mixbackend"]


def test_what_counts_as_our_failure() -> None:
    failed = {"status": "fail_accuracy", "aot_eager": {"status": "pass"}}
    assert is_our_failure(failed)
    assert is_our_failure({"status": "timeout"})
    assert not is_our_failure({**failed, "aot_eager": {"status": "fail_accuracy"}})
    assert not is_our_failure({"status": "eager_failed"})


def test_requests_cross_as_one_line() -> None:
    request = Request("speed", "dcgan", "training", configuration={"backends": ["eager"]})
    assert "\n" not in request.to_line()
    assert request_from_line(request.to_line()) == request
    for wrong in ("[]", '{"task": "speed"}', '{"task": "speed", "model": "m", "phase": "training", "x": 1}'):
        with pytest.raises(ValueError, match="not a request"):
            request_from_line(wrong)


OPS = ("aten.add.Tensor", "aten.mm.default")


def test_placements_add_up_over_graphs() -> None:
    def graph(estimate: float | None, single: dict, *regions: tuple[str, int]) -> dict:
        return {
            "nodes": sum(count for _, count in regions),
            "regions": [
                {
                    "backend": backend,
                    "nodes": ["n"] * count,
                    "ops": {"aten.add.Tensor": count - 1, "aten.mm.default": 1},
                }
                for backend, count in regions
            ],
            "refusals": [
                {"op": op, "backend": "b", "code": "dtype", "detail": "why"} for op in (*OPS, "higher_order.cond")
            ],
            "estimated_s": estimate,
            "single_backend_s": single,
            "optimal": estimate is not None,
        }

    report = {
        "graphs": [
            graph(1.0, {"a": 2.0, "b": 3.0}, ("a", 5), ("b", 1), ("a", 2)),
            graph(0.5, {"a": 1.0}, ("a", 4)),
        ],
        "events": [{"kind": "repair", "graph": "g0", "region": "r1", "backend": "b", "detail": "wrong"}],
    }
    summary = summarise(report)
    assert summary["nodes"] == {"a": 11, "b": 1}
    assert summary["regions"] == {"a": 3, "b": 1}
    assert summary["graph_nodes"] == 12
    assert summary["ops"]["a"] == {"aten.add.Tensor": 8, "aten.mm.default": 3}
    assert summary["refused"] == {"b": {"aten.add.Tensor: dtype: why": 2}}, "only loops are told"
    assert summary["estimated_s"] == 1.5
    assert summary["single_backend_s"] == {"a": 3.0}
    assert summary["events"] == {"repair": 1}
    assert summary["event_details"] == ["repair g0/r1/b: wrong"]
    assert summarise({"graphs": [graph(None, {}, ("a", 1))]})["estimated_s"] is None
    assert summarise({})["graphs"] == 0


@pytest.mark.parametrize("wrong", [["--models", "nope"], ["--phase", "sideways"], ["--nonsense"]])
def test_a_wrong_command_line_is_told(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(wrong)
    assert left.value.code == 2
    assert "error" in capsys.readouterr().err
