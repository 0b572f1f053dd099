"""A second process finds graphs in torch's cache of AOTAutograd, and computes with them what eager does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .stored_graphs_worker import PROGRAMS

WORKER = Path(__file__).with_name("stored_graphs_worker.py")
AHEAD = WORKER.with_name("ahead_of_time_worker.py")
OURS = json.dumps({"backends": ["codegen", "onednn", "eager"]})
Answers = dict[str, dict[str, Any]]


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Answers]:
    """Runs the worker in a new process; all share one cache folder of torch's and one of ours."""

    def run(*arguments: str, **variables: str) -> Answers:
        folders = {"XDG_CACHE_HOME": str(tmp_path / "ours"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
        (tmp_path / "ours").mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, str(WORKER), *arguments]
        environment = {**os.environ, **folders, **variables}
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return {answer["name"]: answer for answer in map(json.loads, done.stdout.splitlines())}

    return run


def counted(answer: dict[str, Any]) -> tuple[int, int, int]:
    """Hits, misses and what could not be stored."""
    return answer.get("hit", 0), answer.get("miss", 0), answer.get("bypass", 0)


BY_DAY = ("training on sizes", "views", "third")


@pytest.mark.parametrize(
    "names", [BY_DAY, pytest.param(tuple(PROGRAMS), marks=pytest.mark.nightly)], ids=["few", "all"]
)
def test_second_process_finds_what_the_first_one_traced(
    process: Callable[..., Answers], names: tuple[str, ...]
) -> None:
    first, second = process(OURS, *names), process(OURS, *names)
    assert set(first) == set(second) == set(names)
    for name in set(names) - {"third"}:
        assert counted(first[name])[0] == 0 < counted(first[name])[1], name
        assert second[name]["hit"] == first[name]["saved"] and "saved" not in second[name], name
    assert counted(second["third"])[0] == 0, "it has no text"
    assert first["third"]["warned"] == second["third"]["warned"] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("other", [json.dumps({"backends": ["onednn", "eager"]}), "inductor"], ids=["ours", "inductor"])
def test_configurations_and_compilers_keep_apart(process: Callable[..., Answers], other: str) -> None:
    one = json.dumps({"backends": ["eager"]})
    for compiler in (one, other):
        assert counted(process(compiler, "views")["views"])[:2] == (0, 1), compiler
    assert counted(process(one, "views")["views"]) == (1, 0, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("switch", ["TORCHINDUCTOR_FORCE_DISABLE_CACHES=1", "TORCHINDUCTOR_AUTOGRAD_CACHE=0"])
def test_users_who_want_no_cache_have_none(process: Callable[..., Answers], switch: str) -> None:
    for _ in range(2):
        assert counted(process(OURS, "views", **dict([switch.split("=")]))["views"])[0] == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("caches", ["kept", "fresh"])
def test_function_compiled_ahead_of_time_runs_in_another_process(tmp_path: Path, caches: str) -> None:
    for step in ("save", "load"):
        folder = tmp_path / (step if caches == "fresh" else "both")
        folder.mkdir(mode=0o700, exist_ok=True)
        variables = {"XDG_CACHE_HOME": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch")}
        command = [sys.executable, str(AHEAD), step, str(tmp_path / "compiled"), OURS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, env={**os.environ, **variables})
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.splitlines()[-1] == "as eager"
