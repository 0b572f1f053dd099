"""The fuzzer itself: it finds what is wrong, tells whose fault that is, makes it small, writes scripts, and resumes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mixbackend.benchmarks.fuzz import __main__ as command
from mixbackend.benchmarks.fuzz.campaign import Campaign, Task, rows_of
from mixbackend.benchmarks.fuzz.comparison import differences
from mixbackend.benchmarks.fuzz.execution import Observation, run
from mixbackend.benchmarks.fuzz.generate import draw
from mixbackend.benchmarks.fuzz.judging import truth
from mixbackend.benchmarks.fuzz.program import Call, Leaf, Program, Statement, program_from_dict
from mixbackend.benchmarks.fuzz.script import script
from mixbackend.benchmarks.fuzz.shrinking import shrink
from mixbackend.benchmarks.fuzz.summary import summarise, text

SMALL = Program(
    leaves=(Leaf("x0", "input", (3, 4), "float32", grad=True), Leaf("b0", "buffer", (4,), "float32", seed=1)),
    statements=(
        Statement(("v0",), "x0 + b0"),
        Statement(("v1",), "v0.exp()"),
        Statement((), "b0.add_(1)"),
        Statement(("v2",), "v1.t()"),
    ),
    results=("v2", "v0"),
    calls=(Call(seed=1, grad=True), Call(seed=2, grad=True)),
)


class Wrong:
    """Compiles nothing, and spoils what is returned."""

    def __init__(self, spoil: object) -> None:
        self._spoil = spoil

    def __call__(self, model: torch.nn.Module) -> object:
        def call(*inputs: torch.Tensor) -> list[torch.Tensor]:
            return self._spoil(model(*inputs))  # type: ignore[operator]

        return call


def found(spoil: object, program: Program = SMALL) -> set[str]:
    known = truth(program)
    return {item.kind for item in differences(run(program, Wrong(spoil)), known.eager, known.exact)}


def fails(results: list[torch.Tensor]) -> list[torch.Tensor]:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lambda results: results, set()),
        (lambda results: [results[0] * 1.0001, *results[1:]], {"value"}),
        (lambda results: [results[0].contiguous(), *results[1:]], {"fact"}),
        (lambda results: [results[0].detach(), *results[1:]], {"fact", "value"}),
        (fails, {"raises"}),
    ],
)
def test_what_is_wrong_is_found(spoil: object, kinds: set[str]) -> None:
    assert found(spoil) == kinds


def test_a_write_that_is_lost_is_found() -> None:
    known = truth(SMALL)
    calm = replace(SMALL, statements=tuple(item for item in SMALL.statements if item.targets))
    kinds = {item.kind for item in differences(run(calm), known.eager, known.exact)}
    assert kinds == {"value", "version"}


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_gives_one_program_that_survives_json(seed: int) -> None:
    program = draw(seed)
    assert draw(seed) == program
    assert program_from_dict(json.loads(json.dumps(program.to_dict()))) == program


def test_shrinking_keeps_what_fails() -> None:
    def still(candidate: Program) -> bool:
        return "exp" in candidate.text() and not run(candidate).error

    smaller = shrink(SMALL, still)
    assert [item.text[2:] for item in smaller.statements] == [".exp()"]
    assert len(smaller.calls) == 1


@pytest.mark.nightly  # two processes that compile
def test_a_script_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_text(
        script(SMALL, {"backends": ["eager"]}, ["what is wrong"]).replace('("aot_eager", "inductor")', "()")
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("--- mixbackend\n")
    assert "off by" not in done.stdout


def test_a_campaign_is_resumed_and_a_lost_process_costs_one_program(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"seed": 1, "setting": "codegen", "status": "pass"}\n{"seed": 2, "set')
    rows = Campaign([Task(1, "codegen"), Task(5, "codegen"), Task(5, "no such setting")], path).run()
    assert [(row["seed"], row["status"]) for row in rows] == [
        (1, "pass"),
        (5, rows[1]["status"]),
        (5, rows[2]["status"]),
    ]
    assert len(rows_of(path)) == 3
    assert "programs" in text(summarise(rows))


def test_a_crash_of_eager_alone_is_torchs(tmp_path: Path) -> None:
    """The gradient of group norm's weights, of a channels-last image that wants none itself, as far as torch 2.13."""
    (row,) = Campaign([Task(3026836, "codegen")], tmp_path / "rows.jsonl").run()
    assert row["status"] in ("torch", "pass"), row
    assert ("Segmentation fault" in row.get("detail", "")) is (row["status"] == "torch")


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"seed": 0, "setting": "default", "status": "ours", "findings": [{"kind": "value", "label": "output 0"}]}
    path.write_text(json.dumps(row) + "\n")
    assert command.main(["--programs", "1", "--results", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["found"][0]["seed"] == 0
    path.write_text(json.dumps({**row, "status": "pass"}) + "\n")
    assert command.main(["--programs", "1", "--results", str(path)]) == 0


def test_no_observation_is_no_difference() -> None:
    assert differences(Observation(), Observation(), Observation()) == []
