"""A user's mypy sees the types of the installed wheel: of what is right it says nothing, of what is wrong it tells."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="reads the types")

RIGHT = """
import torch

import mixbackend

model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
backend = mixbackend.auto({"backends": ["eager"]})
compiled = torch.compile(model, backend=backend)
report: mixbackend.Report = backend.report()
explained: mixbackend.Report = mixbackend.explain(model, x)
mixbackend.export(torch.export.export(model, (x,)), "model.mix")
program = mixbackend.load("model.mix", native_code=False)
print(program(x), report.to_dict()["graphs"], mixbackend.__version__.upper())
"""

WRONG = """
import mixbackend

mixbackend.auto(3)
mixbackend.auto().nothing()
mixbackend.load("model.mix", native_code="no")
number: int = mixbackend.__version__
mixbackend.explain()
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that holds the wheel, and sees the libraries of this one."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "env", symlinks=True)
    (site,) = folder.glob("env/lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def told_by_mypy(environment: Path, program: str) -> list[str]:
    (environment / "program.py").write_text(program)
    interpreter = ["--python-executable", str(environment / "env" / "bin" / "python")]
    command = [sys.executable, "-m", "mypy", *interpreter, "--strict", "--no-error-summary", "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=environment, timeout=280)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.nightly
def test_a_users_program_is_typed(environment: Path) -> None:
    assert told_by_mypy(environment, RIGHT) == []
    lines = [int(line.split(":")[1]) for line in told_by_mypy(environment, WRONG) if ": error:" in line]
    assert lines == [4, 5, 6, 7, 8]
