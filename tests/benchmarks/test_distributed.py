"""The distributed benchmark: one case of each size of compiled part on two gloo processes, and what ends a job."""

from __future__ import annotations

import json
import sys
import time

import pytest
import torch

from mixbackend.benchmarks.commands import distributed as command
from mixbackend.benchmarks.distributed.cases import CASES
from mixbackend.benchmarks.distributed.gradients import Gradient, digest, errors
from mixbackend.benchmarks.distributed.launch import RankProcess, run
from mixbackend.benchmarks.distributed.overlap import overlap_of
from mixbackend.benchmarks.distributed.request import Request
from mixbackend.benchmarks.distributed.rows import CASES as NAMES
from mixbackend.benchmarks.distributed.rows import Row, rows, summary

REQUEST = Request("ddp-bert", "small", "eager", 0, 2, None, 0, "", 0.0, 0.1, 1, 5.0)


@pytest.mark.nightly
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.parametrize("case", ["ddp-bert", "fsdp2-llama"])
def test_two_gloo_processes_have_right_gradients_and_equal_bits(case, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "rows.jsonl"
    asked = ["--gloo", "2", "--cases", case, "--peers", "eager,mixture", "--no-scaling", "--settle", "1", "--json"]
    status = command.main([*asked, "--results", str(file)])
    found = {item["peer"]: item for item in map(json.loads, file.read_text().splitlines())}
    assert {peer: item.get("failed") for peer, item in found.items()} == {"eager": None, "mixture": None}
    ours = found["mixture"]
    assert status == 0
    assert ours["graphs"] != []
    assert all(ours["graphs"])
    assert ours["gradient_error"] < 2e-4
    assert ours["loss"] == pytest.approx(ours["reference_loss"], rel=1e-4)
    has_copies = case.startswith(("ddp", "tensor"))
    assert ours["equal_bits"] is (True if has_copies else None)


def test_what_the_file_holds_is_not_run_again(tmp_path, monkeypatch, capsys):
    ran = []

    def told(self, row, processes, lane):
        ran.append(row)
        return {"case": row.case, "peer": row.peer, "ranks": row.ranks, "seconds": 0.0, "failed": "not run"}

    monkeypatch.setattr(command.Bench, "run_row", told)
    monkeypatch.setattr(command.Bench, "started", lambda self, row: [])
    arguments = ["--gloo", "2", "--cases", "ddp-bert", "--peers", "mixture", "--results", str(tmp_path / "rows.jsonl")]
    assert command.main(arguments) == 1
    assert command.main(arguments) == 1
    assert ran == [Row("ddp-bert", "mixture", 2), Row("ddp-bert", "mixture", 1)]


def test_names_that_the_command_offers_are_the_cases_of_both_sizes():
    assert tuple(CASES["true"]) == tuple(CASES["small"]) == NAMES


def test_a_rank_that_fails_ends_the_others_and_says_why():
    failing = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit('the fault of rank 1')"]
    waiting = [sys.executable, "-c", "import time; time.sleep(600)"]
    processes = [RankProcess({}, waiting), RankProcess({}, failing)]
    begun = time.monotonic()
    outcome = run(processes, [REQUEST, REQUEST], 60.0, grace_s=0.5)
    assert time.monotonic() - begun < 30.0
    assert "rank 1 ended with status 1" in outcome.failed
    assert "the fault of rank 1" in outcome.failed
    assert all(process.code is not None for process in processes)


def test_ranks_that_take_too_long_are_ended():
    waiting = [sys.executable, "-c", "import time; time.sleep(600)"]
    processes = [RankProcess({}, waiting) for _ in range(2)]
    outcome = run(processes, [REQUEST, REQUEST], 0.5)
    assert outcome.failed.startswith("not done in time: ranks [0, 1]")
    assert all(process.code is not None for process in processes)


def test_overlap_counts_what_runs_beside_communication():
    kernels = [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", (0.0, 4000.0)),
        ("void gemm", (1000.0, 2000.0)),
        ("triton_poi", (1500.0, 3000.0)),
        ("void tail", (4000.0, 5000.0)),
        ("Memcpy DtoD", (0.0, 9000.0)),
    ]
    found = overlap_of(kernels, steps=2)
    assert (found.communication, found.computation, found.both) == (2.0, 1.5, 1.0)


def test_errors_are_relative_and_noise_is_measured_by_all():
    reference = {"weight": torch.full((100,), 2.0), "bias": torch.full((100,), 1e-9)}
    found = {
        "weight": Gradient(torch.full((100,), 2.2), True),
        "bias": Gradient(torch.full((100,), 2e-9), True),
    }
    relative = errors(found, reference)
    assert relative["weight"] == pytest.approx(0.1, rel=1e-4)
    assert relative["bias"] < 1e-5
    assert relative[""] == pytest.approx(0.1, rel=1e-4)


def test_digest_sees_one_bit():
    ones = torch.ones(3, dtype=torch.bfloat16)
    other = ones.clone()
    other[1] = 1.0078125
    assert digest([ones]) == digest([ones.clone()]) != digest([other])


def test_rows_on_one_rank_come_last_and_rounds_turn_the_order():
    found = rows(["ddp-bert"], ["eager", "mixture"], 2, 2, True)
    assert [row.peer for row in found] == ["eager", "mixture", "mixture", "eager", "eager", "mixture"]
    assert [row.ranks for row in found] == [2, 2, 2, 2, 1, 1]


def test_summary_compares_with_inductor_and_scales_as_the_case_does():
    def item(case, peer, ranks, step_ms, error=1e-3, bits=True):
        figures = {"step_ms": step_ms, "gradient_error": error, "equal_bits": bits}
        return {"case": case, "peer": peer, "ranks": ranks, **figures}

    found = summary(
        [
            item("ddp-bert", "eager", 2, 20.0),
            item("ddp-bert", "inductor", 2, 12.0),
            item("ddp-bert", "mixture", 2, 10.0),
            item("ddp-bert", "mixture", 1, 9.0),
            item("tensor-llama", "mixture", 2, 10.0, error=1e-6, bits=False),
            item("tensor-llama", "mixture", 1, 16.0),
        ]
    )
    lines = {(line["case"], line["peer"]): line for line in found}
    ddp, tensor = lines["ddp-bert", "mixture"], lines["tensor-llama", "mixture"]
    assert (ddp["of_inductor"], ddp["scaling"], ddp["right"]) == (1.2, 0.9, True)
    assert (tensor["scaling"], tensor["right"]) == (0.8, False)
    alone = [item("ddp-bert", "mixture", 2, 10.0), item("tensor-llama", "mixture", 2, 10.0, error=1e-6)]
    assert [line["right"] for line in summary(alone)] == [None, True]
