"""The wheel, built once for all tests here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("mixbackend", "contracts", "partitioner", "backends", "benchmarks")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, without network; beside it lies what the build said."""
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    pytest.importorskip("setuptools", minversion="77", reason="builds the wheel")
    told = ("--quiet", "--log", str(made / "build.log"))
    options = ("--no-deps", "--no-build-isolation", "--no-index", *told, "--wheel-dir", str(made))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(tree)], check=True, timeout=200)
    (path,) = made.glob("*.whl")
    return path
