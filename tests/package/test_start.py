"""A package runs in a process that imports neither Dynamo nor inductor for it: they take longer than all the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from package_models import error_of
from torch.nn import functional
from warm_processes import WarmProcesses

import mixbackend

PROGRAM = """
import json, sys
import torch, mixbackend

package, inputs, results, config = sys.argv[1:]
assert "torch._dynamo" not in sys.modules, "the process is not a fresh one"
program = mixbackend.load(package, config=json.loads(config))
torch.save([program(x) for x in torch.load(inputs)], results)
print(json.dumps(sorted({"torch._dynamo", "torch._inductor"} & set(sys.modules))), len(program.report().events))
"""


class Attending(torch.nn.Module):
    """Any number of rows; views that begin inside their storage, which the text of the graph states."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = torch.nn.Linear(32, 96), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.view(x.shape[0], x.shape[1], 2, 16) for part in self.inside(x).chunk(3, -1))
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key).softmax(-1)
        return functional.gelu(self.outside(torch.einsum("bhqk,bkhd->bqhd", scores, value).flatten(2)))


def convolutions() -> torch.nn.Module:
    """A convolution into which a normalisation is folded."""
    norm = torch.nn.BatchNorm2d(16)
    torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), norm, torch.nn.ReLU())


def images() -> torch.nn.Module:
    """Convolutions that oneDNN runs on channels-last images."""
    return torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3))


CASES = {
    "symbolic sizes": (Attending, (3, 8, 32), {0: torch.export.Dim.DYNAMIC}, (5, 8, 32), ["onednn", "eager"]),
    "folded norms": (convolutions, (2, 3, 16, 16), None, (2, 3, 16, 16), ["codegen", "eager"]),
    "channels-last images": (
        images,
        (3, 16, 40, 40),
        {0: torch.export.Dim.DYNAMIC},
        (4, 16, 40, 40),
        ["onednn", "eager"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_package_runs_without_dynamo(case: str, warm: WarmProcesses, tmp_path: Path) -> None:
    make, traced, dynamic, other, backends = CASES[case]
    config = {"backends": backends}
    torch.manual_seed(0)
    model = make().eval()
    program = torch.export.export(model, (torch.randn(traced),), dynamic_shapes=({**dynamic},) if dynamic else None)
    report = mixbackend.export(program, tmp_path / "model.mix", config=config)
    assert report.graphs[0].layout.chosen == ("channels_last" if case == "channels-last images" else "as_traced")
    inputs = [torch.randn(traced), torch.randn(other)]
    torch.save(inputs, tmp_path / "inputs.pt")
    arguments = (tmp_path / "model.mix", tmp_path / "inputs.pt", tmp_path / "results.pt")
    ran = warm.run(PROGRAM, *map(str, arguments), json.dumps(config))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["[]", "0"], ran.stdout
    for x, result in zip(inputs, torch.load(tmp_path / "results.pt"), strict=True):
        with torch.no_grad():
            eager = model(x)
            exact = model.double()(x.double())
            model.float()
        assert error_of(result, eager, exact) < 4
