"""The wheel: its files by rule, and the commands that run from it where no source tree is near."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("setuptools", minversion="77", reason="builds the wheel")

ROOT = Path(__file__).parents[2]
FOLDERS = ("mixbackend", "contracts", "partitioner", "backends", "benchmarks")
DATA = (".py", ".cpp", ".css", ".hpp", ".html", ".js", ".json", ".tsv", ".txt", ".typed")
Run = Callable[..., subprocess.CompletedProcess[str]]

SHIPPED_BENCHMARKS = ("__init__.py", "models/", "one_model/")

MODEL = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), (torch.randn(4, 8),), {}
"""


def sources() -> Iterator[tuple[str, Path]]:
    """What the folders hold: the name in the package, and the file."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                inner = path.relative_to(ROOT)
                yield str(inner if folder == "mixbackend" else Path("mixbackend") / inner), path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Runs ``mixbackend`` from the wheel in a folder that holds nothing but a model."""
    (tmp_path / "small.py").write_text(MODEL)
    (tmp_path / "cache").mkdir(mode=0o700)
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    # Without `site` no .pth file is read, so an editable install of this tree cannot help out.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(installed), *libraries]),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "MIXBACKEND_CALIBRATE": "0",
    }

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-m", "mixbackend", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=200
        )

    return call


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    expected = set()
    for name, path in sources():
        inner = path.relative_to(ROOT).as_posix()
        shipped = not inner.startswith("benchmarks/") or inner.removeprefix("benchmarks/").startswith(
            SHIPPED_BENCHMARKS
        )
        if path.suffix in DATA and shipped:
            expected.add(name)
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert len(expected) > 300
    assert held == expected


def test_no_folder_of_data_is_taken_for_a_package_that_was_forgotten(wheel: Path) -> None:
    told = (wheel.parent / "build.log").read_text(encoding="utf-8")
    assert "reporting/page/libraries" in told
    assert "absent from the `packages` configuration" not in " ".join(told.split())


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    """Pythons as ``requires-python`` has them, and the licenses of all that it holds."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(archive.read(name))
        licenses = {Path(name).name for name in archive.namelist() if ".dist-info/licenses/" in name}
        libraries = json.loads(archive.read("mixbackend/reporting/page/libraries/libraries.json"))
    stated = set(told["License-Expression"].split(" AND "))
    assert {library["license"] for library in libraries} | {"Apache-2.0"} == stated
    assert licenses == {"LICENSE", "LICENSES.txt"}
    lowest, highest = (int(number) for number in re.findall(r"3\.(\d+)", told["Requires-Python"])[::-1])
    classifiers = set(told.get_all("Classifier", []))
    named = {f"3.{number}" for number in range(lowest, highest)}
    prefix = "Programming Language :: Python :: "
    assert {item.removeprefix(prefix) for item in classifiers if re.match(prefix + r"3\.\d", item)} == named
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= classifiers
    assert told["Description-Content-Type"] == "text/markdown" and told["Author"]


def test_no_kind_of_file_is_forgotten() -> None:
    documents = ROOT / "benchmarks" / "results"  # stay in the tree
    kinds = {path.suffix for _, path in sources() if documents not in path.parents}
    assert kinds <= set(DATA), "a new kind of file needs a line in package-data of pyproject.toml, and here"


def test_commands_run_from_the_wheel(run: Run) -> None:
    for arguments in (("demo", "--help"), ("tune", "--help"), ("explain", "--help")):
        done = run(*arguments)
        assert done.returncode == 0 and "usage" in done.stdout.lower(), done.stderr
    done = run("backends")
    assert done.returncode == 0 and "codegen" in done.stdout, done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["small:make", "lennard_jones"])
def test_models_are_explained_from_the_wheel(run: Run, tmp_path: Path, model: str) -> None:
    (tmp_path / "own.yaml").write_text("backends: [codegen, eager]\n")
    done = run("explain", model, "--config", "own.yaml")
    assert done.returncode == 0 and "codegen" in done.stdout, done.stderr


@pytest.mark.nightly
def test_a_model_is_tuned_from_the_wheel_and_its_lock_file_holds(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("backends: [codegen, eager]\n")
    options = ("small:make", "--config", "own.yaml", "--lock", "placements.yaml")
    done = run("tune", *options, "--budget", "100")
    assert done.returncode == 0 and (tmp_path / "placements.yaml").is_file(), done.stderr
    assert "could not be measured" not in done.stdout + done.stderr
    done = run("explain", *options, "--frozen")
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_the_demo_runs_from_the_wheel(run: Run) -> None:
    done = run("demo", "--model", "lennard_jones", "--backends", "codegen,eager", "--no-peers", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["agrees"] and [item["status"] for item in found["judged"].values()] == ["pass"] * 2


def test_benchmarks_say_where_they_run(run: Run) -> None:
    done = run("bench", "suite", "--models", "resnet18")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("mixbackend bench runs from a source tree") and done.stderr.count("\n") == 1


def test_all_benchmarks_import_from_a_source_tree() -> None:
    from mixbackend.benchmarks import command_line, runner
    from mixbackend.benchmarks.peers import catalogue

    assert command_line.bench_app and runner and catalogue
