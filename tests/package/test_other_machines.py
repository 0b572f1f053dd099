"""Packages where backends, compilers or versions are others than where they were made."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from package_models import error_of
from warm_processes import WarmProcesses

import mixbackend
from mixbackend import registry
from mixbackend.backends.eager import EagerBackend
from mixbackend.contracts import Availability, PackageError
from mixbackend.registry import isolated_registry

X = torch.linspace(-1, 1, 6 * 64).reshape(6, 64)


def rewritten(path: Path, target: Path, change: Any, change_graph: Any = None) -> Path:
    """A copy of a package with another manifest, and another graph."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    if change_graph is not None:
        data = json.loads(members["graphs/forward.json"])
        change_graph(data)
        members["graphs/forward.json"] = content = json.dumps(data).encode()
        said = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        manifest["members"]["graphs/forward.json"] = said
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.LayerNorm(64)]
    return torch.nn.Sequential(*layers, torch.nn.Softmax(-1)).eval()


RULES = [
    {"match": {"op": "aten.addmm"}, "require": "onnxruntime"},
    {"match": {"op": "aten.native_layer_norm"}, "require": "codegen"},
]
"""Regions on three backends: a placement that costs alone would not choose."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "mixed.mix"
    report = mixbackend.export(torch.export.export(model(), (X,)), path, config={"rules": RULES})
    owners = {region.backend for graph in report.graphs for region in graph.plan.regions}
    assert {"onnxruntime", "codegen"} <= owners and len(owners) > 2
    return path


def check(program: Any) -> None:
    eager = model()
    with torch.no_grad():
        assert error_of(program(X), eager(X), eager.double()(X.double())) < 4


def owners(program: Any) -> set[str]:
    return {region.backend for graph in program.report().graphs for region in graph.plan.regions}


def test_a_package_of_three_backends_runs_where_two_are_absent(mixed: Path) -> None:
    with isolated_registry(EagerBackend()):
        program = mixbackend.load(mixed)
        check(program)
        assert owners(program) == {"eager"}
        told = [event for event in program.report().events if event.region]
        assert {event.kind for event in told} == {"package"}
        assert {event.backend for event in told} >= {"onnxruntime", "codegen"}
        assert "runs on eager: no backend is called 'codegen'" in str([str(event) for event in told])
        with pytest.raises(PackageError, match=r"(?s)backend codegen.*\+ backend codegen: no backend is called"):
            mixbackend.load(mixed, strict=True)


def test_regions_go_to_their_runners_up(mixed: Path, tmp_path: Path) -> None:
    def change(data: Any) -> None:
        (bucket,) = data["plan"]["buckets"]
        bucket["runners_up"] = {region["id"]: ["onednn"] for region in bucket["plan"]["regions"]}

    path = rewritten(mixed, tmp_path / "with.mix", lambda data: data.update(runners_up=["onednn"]), change)
    with isolated_registry(EagerBackend(), registry.get("onednn")):
        program = mixbackend.load(path)
        check(program)
        moved = {event.backend: event.detail for event in program.report().events if event.region}
        assert owners(program) == {"onednn", "eager"}, moved
        assert moved["onnxruntime"].startswith("runs on onednn and eager: "), moved


def test_without_native_code_nothing_of_it_is_loaded(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *_, **__: pytest.fail(f"{name} is loaded"))
    with isolated_registry(*(registry.get(name) for name in ("eager", "onnxruntime"))):
        program = mixbackend.load(mixed, native_code=False)
        check(program)
        assert owners(program) == {"eager", "onnxruntime"}


def test_a_file_that_others_can_write_to_brings_no_native_code(mixed: Path) -> None:
    mixed.chmod(0o666)
    try:
        with pytest.raises(PackageError, match=r"native code of .* is not loaded: it can be written by others"):
            mixbackend.load(mixed)
        check(mixbackend.load(mixed, native_code=False))
    finally:
        mixed.chmod(0o644)


FRESH = """
import subprocess, sys
import torch, mixbackend
def no(*given, **keywords):
    raise AssertionError(f"a process is started: {given}")
subprocess.Popen = no
from mixbackend.execute import verification
depths, check = [], verification.checked_call
def seen(checked, run, inputs, depth):
    depths.append(depth)
    return check(checked, run, inputs, depth)
verification.checked_call = seen
x = torch.linspace(-1, 1, 6 * 64).reshape(6, 64)
program = mixbackend.load(sys.argv[1])
result = program(x)
report = program.report()
import json
regions = [(region.backend, record.cached) for graph in report.graphs
           for region, record in zip(graph.plan.regions, graph.regions)]
print(json.dumps([result.tolist(), regions, [str(event) for event in report.events], depths]))
"""


def fresh(warm: WarmProcesses, tmp_path: Path, path: Path, *arguments: str, **variables: str) -> Any:
    """What a process with an empty cache says that has no compiler."""
    folder = tmp_path / "fresh"
    folder.mkdir(mode=0o700)
    env = {**os.environ, "PATH": "/nonexistent", "XDG_CACHE_HOME": str(folder), **variables}
    env.pop("CXX", None)
    answer = warm.run(FRESH, str(path), *arguments, env=env)
    assert answer.returncode == 0, answer.stderr[-3000:]
    return json.loads(answer.stdout.splitlines()[-1])


def test_it_runs_without_a_compiler(warm: WarmProcesses, mixed: Path, tmp_path: Path) -> None:
    result, regions, events, depths = fresh(warm, tmp_path, mixed)
    eager = model()
    with torch.no_grad():
        assert error_of(torch.tensor(result), eager(X), eager.double()(X.double())) < 4
    assert [cached for backend, cached in regions if backend == "codegen"] == [True] * sum(
        backend == "codegen" for backend, _ in regions
    )
    assert any(backend == "codegen" for backend, _ in regions)
    assert [event for event in events if not event.startswith("threads")] == []
    assert "whole" not in depths, "it was held against eager where it was made"


def test_other_versions_are_told_and_artifacts_of_other_toolchains_left(mixed: Path, tmp_path: Path) -> None:
    def change(data: Any) -> None:
        data["made_with"]["torch"] = "2.0.0"
        for item in data["backends"]:
            if item["name"] == "codegen":
                item["loading"], item["kit"] = "codegen region 0", ""

    path = rewritten(mixed, tmp_path / "other.mix", change)
    program = mixbackend.load(path)
    check(program)
    texts = [event.detail for event in program.report().events if event.kind == "package"]
    assert f"torch: 2.0.0 when the package was made, here {torch.__version__}" in texts
    assert any(text.startswith("artifacts of codegen: codegen region 0 when the package was made") for text in texts)
    with pytest.raises(PackageError, match=r"(?s)- torch: 2\.0\.0.*- artifacts of codegen: codegen region 0"):
        mixbackend.load(path, strict=True)


def test_a_processor_that_lacks_instructions_gets_no_code(mixed: Path, tmp_path: Path) -> None:
    kit = registry.get("codegen").kit("cpu")
    fields = json.loads(kit)
    fields["instructions"].append("avx4096")
    loaded = registry.get("codegen").with_kit(json.dumps(fields).encode())
    answer = loaded.availability()
    assert answer == dataclasses.replace(Availability(False), reason=answer.reason)
    assert "instructions that this processor lacks: avx4096" in answer.reason
    assert sys.byteorder == "little"
