"""Peers' processes take turns: who works when, who is stopped, and what becomes of those that fail."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mixbackend.benchmarks.peers.catalogue import cache_folder
from mixbackend.benchmarks.peers.request import PeerCase, PeerRequest, request_from_line
from mixbackend.benchmarks.peers.turns import (
    Options,
    calibrate,
    expected_s,
    measure_machine,
    time_case,
    variables_for,
)
from mixbackend.cost.switches import SWITCH
from mixbackend.storage import Database

BACKENDS = ("codegen", "openvino")


def case(model: str, phase: Any = "inference", dtype: str = "float32") -> PeerCase:
    return PeerCase(model, 1, phase, dtype)


def options(**changes: Any) -> Options:
    return Options(**{"backends": BACKENDS, "rounds": 3, "seconds": 0.01, "timeout_s": 20.0, "module": "fake_peers",
                      "memory_gb": 0.0, **changes})  # fmt: skip


def run(model: str, *peers: str, **changes: Any) -> dict[str, dict[str, Any]]:
    return time_case(case(model), peers, options(**changes), lambda text, behind_s: None)


def notes(file: Path) -> list[list[Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_round_asks_every_peer_in_another_order(fake_peers: Path) -> None:
    shown: list[float] = []
    records = time_case(
        case("plain"), ("inductor", "openvino"), options(), lambda text, behind_s: shown.append(behind_s)
    )
    order = [peer for peer, event, _ in notes(fake_peers) if event == "slice"]
    assert order == ["eager", "inductor", "openvino", "openvino", "inductor", "eager", "inductor", "openvino", "eager"]
    assert list(records) == ["eager", "inductor", "openvino"]
    assert records["inductor"]["rounds_s"] == [2.0] * 3 and records["inductor"]["anchor_rounds_s"] == [4.0] * 3
    assert len({record["turns"] for record in records.values()}) == 1
    assert records["openvino"]["work"] == {"flops": 1_000_000, "bytes": 2_000_000}
    assert records["openvino"]["cores_of_others"] == 0.25
    assert sum(shown) == pytest.approx(expected_s(case("plain"), ("inductor", "openvino"), options()))


def test_a_peer_whose_threads_spin_uses_no_processor_while_others_work(fake_peers: Path) -> None:
    records = run("spinning", "openvino", "inductor", rounds=2)
    spent = [seconds for peer, event, seconds in notes(fake_peers) if peer == "openvino" and event == "slice"]
    assert records["openvino"]["status"] == "pass"
    # The others' turns between take 0.8 seconds; waking up and being stopped cost it something.
    assert spent[1] - spent[0] < 0.3, "it went on spinning in the turns of the others"


def test_a_crash_while_compiling_and_one_in_a_turn_cost_only_the_peer(fake_peers: Path) -> None:
    records = run("crashing", "inductor", "openvino", "mixture")
    assert (records["inductor"]["status"], records["openvino"]["status"]) == ("crash", "crash")
    assert "SIGABRT" in records["inductor"]["detail"]
    assert "rounds_s" not in records["openvino"]
    assert records["mixture"]["rounds_s"] == [2.0] * 3


def test_time_runs_out_while_compiling_and_in_a_turn(fake_peers: Path) -> None:
    assert run("hanging", "inductor", timeout_s=1.0)["inductor"]["status"] == "timeout"
    slow = run("slow", "inductor", timeout_s=1.0, rounds=2)
    assert slow["inductor"]["status"] == "timeout" and "no answer within 1 s" in slow["inductor"]["detail"]
    assert slow["eager"]["rounds_s"] == [4.0, 4.0]


def test_a_wrong_peer_is_timed_and_stays_wrong(fake_peers: Path) -> None:
    record = run("wrong", "onnxruntime")["onnxruntime"]
    assert (record["status"], record["detail"], record["rounds_s"]) == ("wrong", "off by 3", [0.5] * 3)


def test_without_a_reference_nothing_is_compiled(fake_peers: Path) -> None:
    records = run("broken", "inductor", "mixture")
    assert {record["status"] for record in records.values()} == {"reference_failed"}
    assert "eager cannot run it" in records["mixture"]["detail"]
    assert not fake_peers.exists()


def test_peers_that_cannot_are_refused_and_not_started(fake_peers: Path) -> None:
    peers = ("inductor-freezing", "onnxruntime", "openvino")
    records = time_case(case("plain", "training"), peers, options(rounds=1), lambda text, behind_s: None)
    assert [records[peer]["status"] for peer in peers] == ["refused"] * 3
    assert {peer for peer, _, _ in notes(fake_peers)} == {"eager"}
    half = time_case(case("plain", dtype="bfloat16"), peers, options(rounds=1), lambda text, behind_s: None)
    assert [half[peer]["status"] for peer in peers] == ["pass", "refused", "pass"]


def test_environments(fake_peers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    run("plain", "mixture", rounds=1, threads=2)
    by_peer = {peer: event for peer, event, _ in notes(fake_peers) if event != "slice"}
    assert by_peer["eager"] == {
        "start": {"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": None}, "threads": "2", "configuration": None,
    }  # fmt: skip
    assert by_peer["mixture"]["start"]["GOMP_SPINCOUNT"] is None
    assert by_peer["mixture"]["configuration"] == {"cache": {"dir": str(cache_folder("mixture"))}}
    assert variables_for("mixture", "sleeping")["GOMP_SPINCOUNT"] == "0"
    assert variables_for("only-codegen", "sleeping")["GOMP_SPINCOUNT"] == "0"
    assert variables_for("openvino", "sleeping")["GOMP_SPINCOUNT"] is None


def test_our_peers_begin_without_decisions_and_probe_nothing_beside_others(
    fake_peers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Database.open(cache_folder("tuned"))
    before.set_decision("a graph", {"choice": "remembered"})
    before.close()
    monkeypatch.delenv(SWITCH, raising=False)
    run("plain", "tuned", rounds=1)
    assert not Database.open(cache_folder("tuned")).has_decisions()
    assert variables_for("tuned", "user")[SWITCH] == "0"
    assert SWITCH not in variables_for("inductor", "user")


def test_the_machine_is_probed_first_where_that_is_allowed(fake_peers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert calibrate(options()) == "" and not fake_peers.exists()
    monkeypatch.delenv(SWITCH)
    assert calibrate(options()) == ""
    assert [peer for peer, _, _ in notes(fake_peers)] == ["calibrate"]
    assert calibrate(options(module="no_such_module")).startswith("could not be probed, plans go by priors: crash: ")


def test_rates_that_were_probed_on_a_busy_machine_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "busy.py").write_text("import json; print(json.dumps({'status': 'pass', 'unsettled': ['device cpu']}))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv(SWITCH, raising=False)
    assert calibrate(options(module="busy")).endswith("run again half an hour later: device cpu")


def test_paused_peers_end_with_the_process_that_asked_them(fake_peers: Path) -> None:
    program = """
import os
from mixbackend.benchmarks.peers.request import PeerCase, PeerRequest
from mixbackend.host.processes import Worker
request = PeerRequest("peer", PeerCase("plain", 1, "inference", "float32"), "eager")
worker = Worker(request, "fake_peers")
assert worker.answer(20)["status"] == "pass"
worker.pause()
print(worker._process.pid, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    state = Path(f"/proc/{int(done.stdout)}/stat")
    deadline = time.monotonic() + 5
    while state.exists() and ") Z " not in state.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not state.exists() or ") Z " in state.read_text(), "it is still there, stopped"


def test_limits_of_the_machine_come_from_a_process_too(fake_peers: Path) -> None:
    assert measure_machine("float32", options())["flops_per_s"] == 2e9


def test_requests_cross_as_lines() -> None:
    request = PeerRequest("peer", case("m"), "mixture", {"backends": ["eager"]}, "/f", 2, 5, 1.0)
    assert request_from_line(request.to_line()) == request
    with pytest.raises(ValueError, match="not a request"):
        request_from_line('{"task": "peer"}')
