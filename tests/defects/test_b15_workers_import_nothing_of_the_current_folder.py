"""B15: processes that we start import nothing of the current folder: a ``random.py`` beside the user's script breaks
neither tuning nor calibration nor building."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mixbackend.backends.common.python_process import module_command
from mixbackend.commands.this_folder import modules_of_this_folder
from mixbackend.host.processes import Worker

ROOT = Path(__file__).parents[2]
SHADOWS = ("random", "json", "runpy", "typing", "torch", "mixbackend")
ANSWERS = """
import json, random, sys
if __name__ == "__main__":
    told = {"random": random.__file__, "arguments": sys.argv[1:], "line": sys.stdin.readline()}
    print(json.dumps({"status": "pass", **told}))
"""


@dataclass
class Request:
    def to_line(self) -> str:
        return "a request"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with the module that is run; the current one is full of traps."""
    current, library = tmp_path / "current", tmp_path / "library"
    for folder in (current, library):
        folder.mkdir()
    for name in SHADOWS:
        (current / f"{name}.py").write_text("raise SystemExit('this is the file of the current folder')")
    (library / "answers.py").write_text(ANSWERS)
    monkeypatch.chdir(current)
    return str(library)


def test_a_worker_finds_pythons_own_modules(library: str) -> None:
    worker = Worker(Request(), "answers", variables={"PYTHONPATH": library})
    answer = worker.answer(60)
    worker.close()
    assert answer["status"] == "pass", answer
    assert (answer["line"], answer["arguments"]) == ("a request\n", [])
    assert "current" not in Path(answer["random"]).parts


def test_a_command_that_looks_into_the_current_folder_does_so_last(library: str) -> None:
    before = list(sys.path)
    with modules_of_this_folder():
        assert sys.path == [*before, str(Path.cwd())]
        path = os.pathsep.join([library, *filter(None, sys.path)])
    assert sys.path == before
    worker = Worker(Request(), "answers", variables={"PYTHONPATH": path})
    answer = worker.answer(60)
    worker.close()
    assert answer["status"] == "pass", answer
    assert "current" not in Path(answer["random"]).parts


def test_a_module_gets_its_arguments(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", library)
    done = subprocess.run(module_command("answers", "-x", "y"), input="", capture_output=True, text=True, check=True)
    assert '"arguments": ["-x", "y"]' in done.stdout


def test_nobody_starts_python_in_another_way() -> None:
    """What runs a module with ``-m`` looks into the current folder first."""
    started = re.compile(r'sys\.executable, "-m", (?!"pytest")')
    parts = ("mixbackend", "backends", "contracts", "partitioner", "benchmarks")
    paths = [path for part in parts for path in (ROOT / part).rglob("*.py")]
    assert len(paths) > 300
    assert [str(path.relative_to(ROOT)) for path in paths if started.search(path.read_text(encoding="utf-8"))] == []
