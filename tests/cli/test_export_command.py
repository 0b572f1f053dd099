"""``mixbackend export``: a package of a model of one's own, or of a saved program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import mixbackend
from mixbackend.cli import main

FACTORY = """
import torch

class Doubling(torch.nn.Module):
    def forward(self, x, more):
        return x * 2 + more["y"]

def make():
    return Doubling(), (torch.ones(3, 4), {"y": torch.ones(3, 1)}), {}
"""


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doubling.py").write_text(FACTORY)
    (tmp_path / "eager.yaml").write_text("backends: [eager]\n")
    return tmp_path


def test_a_model_of_one_s_own_with_any_sizes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("export", "doubling:make", "d.mix", "--dynamic", "--config", "eager.yaml", "--json")
    assert run(*arguments) == 0
    told = json.loads(capsys.readouterr().out)["package"]
    assert told == {"path": "d.mix", "bytes": (folder / "d.mix").stat().st_size}
    program = mixbackend.load(folder / "d.mix")
    assert torch.equal(program(torch.ones(7, 5), {"y": torch.zeros(7, 1)}), torch.full((7, 5), 2.0))


def test_a_saved_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), folder / "relu.pt2")
    assert run("export", "relu.pt2", "relu.mix", "--config", "eager.yaml") == 0
    assert "mixbackend.load('relu.mix') runs it" in capsys.readouterr().out
    assert torch.equal(mixbackend.load("relu.mix")(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))
    (folder / "none.pt2").write_text("nothing")
    assert run("export", "none.pt2", "none.mix") == 2
    assert not (folder / "none.mix").exists()
