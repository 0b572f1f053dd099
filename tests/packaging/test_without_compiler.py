"""Without a C++ compiler all but generated C++ and inductor on processors runs, and one message says what is lost.

``.ci/without_compiler`` runs further tests so.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from warm_processes import WarmProcesses

import mixbackend
from mixbackend.backends.codegen import CodegenBackend

NEEDS_COMPILER = {"codegen", "inductor"}

PROGRAM = """
import json, logging, sys
import torch, mixbackend

said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("mixbackend").addHandler(handler)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 16),
    torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4), torch.nn.Softmax(-1),
)
x = torch.randn(5, 3, 8, 8)

def gradients(module):
    module.zero_grad()
    module(x).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]

expected = [parameter.clone() for parameter in gradients(model)]
backend = mixbackend.auto()
compiled = torch.compile(model, backend=backend)
torch.testing.assert_close(gradients(compiled), expected, rtol=1e-4, atol=1e-5)

model.eval()
with torch.no_grad():
    for batch in (x, x[:3], x):
        torch.testing.assert_close(compiled(batch), model(batch), rtol=1e-4, atol=1e-5)
    model[4].weight.data.mul_(2)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    said_of_one = list(said)
    explained = mixbackend.explain(model, x)
program = mixbackend.load(sys.argv[1])
torch.testing.assert_close(program(torch.ones(4, 32)), torch.load(sys.argv[2]), rtol=1e-4, atol=1e-5)

def told(report):
    return {
        "backends": sorted({region.backend for graph in report.graphs for region in graph.plan.regions}),
        "events": [event.detail for event in report.events if "compiler" in event.detail],
        "lacking": {info.name: info.reason for info in report.unavailable},
    }

reports = {"compiled": backend.report(), "explained": explained, "loaded": program.report()}
print(json.dumps({"said": said_of_one, **{name: told(report) for name, report in reports.items()}}))
"""


@pytest.fixture(scope="module")
def found(warm: WarmProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process tells that has no compiler and an empty cache."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("bin", "cache"):
        (folder / name).mkdir(mode=0o700)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)).eval()
    package, expected, inputs = folder / "model.mix", folder / "expected.pt", torch.ones(4, 32)
    with torch.no_grad():
        mixbackend.export(torch.export.export(model, (inputs,)), package, config={"backends": ["codegen", "eager"]})
        torch.save(model(inputs), expected)
    env = {**os.environ, "PATH": str(folder / "bin"), "XDG_CACHE_HOME": str(folder / "cache")}
    for name in ("CXX", "CC", "MIXBACKEND_CACHE"):
        env.pop(name, None)
    answer = warm.run(PROGRAM, str(package), str(expected), env=env)
    assert answer.returncode == 0, answer.stderr[-4000:]
    told: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return told


def test_models_compile_train_and_are_explained_as_in_eager(found: dict[str, Any]) -> None:
    """The process compares; here is what ran."""
    for name in ("compiled", "explained"):
        assert found[name]["backends"] and not NEEDS_COMPILER & set(found[name]["backends"])


def test_a_package_runs_the_kernels_that_it_brings(found: dict[str, Any]) -> None:
    if not CodegenBackend().availability().available:
        pytest.skip("there is no C++ compiler here that could make the kernels of a package")
    assert "codegen" in found["loaded"]["backends"] and found["loaded"]["events"] == []


def test_one_message_says_what_is_lacking_and_what_to_do(found: dict[str, Any]) -> None:
    (message,) = found["compiled"]["events"]
    assert [text for text in found["said"] if "compiler" in text] == [f"fallback: {message}"]
    assert "weights are live inputs" in message and all(name in message for name in NEEDS_COMPILER)
    assert message.endswith("install one (Debian, Ubuntu: apt install g++; conda: cxx-compiler) or set CXX")


def test_the_report_gives_both_backends_one_reason(found: dict[str, Any]) -> None:
    reasons = {found["compiled"]["lacking"][name] for name in NEEDS_COMPILER}
    (reason,) = reasons
    assert reason.startswith("no C++ compiler: none of g++, clang++, c++ is on the path")


def test_the_readme_says_so_on_its_first_screen() -> None:
    text = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
    assert "Without a C++ compiler" in "\n".join(text.splitlines()[:30])
