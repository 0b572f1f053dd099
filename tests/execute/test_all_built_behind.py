"""Every backend that says so is compiled by another process, and this one loads what came of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config

from mixbackend.backends.common.python_process import module_command
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import load_config
from mixbackend.contracts import InputRole, Region
from mixbackend.execute.behind_build import region_job
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.trace import trace_region
from mixbackend.host.background import Job
from mixbackend.plan.environment import Environment

BACKENDS = ("codegen", "inductor", "onnxruntime", "openvino")
VALUES = torch.linspace(-2.0, 2.0, 4096).reshape(64, 64)
WEIGHT, BIAS = VALUES.cos(), torch.linspace(0.0, 1.0, 64)


def pointwise(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.softmax(value * 1.25, dim=-1)) + 0.5


def dense(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(value @ weight + bias)


def region_of(kind: str) -> tuple[Region, list[torch.Tensor]]:
    if kind == "plain":
        return trace_region(pointwise, [VALUES]), [VALUES]
    inputs = [VALUES, WEIGHT, BIAS]
    roles = {place: PlaceholderRole(InputRole.CONSTANT) for place in (1, 2)}
    return trace_region(dense, inputs, roles=roles), inputs


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return open_environment(load_config({"cache": {"dir": str(folder)}}))


def done_behind(job: Job) -> dict[str, Any]:
    """What a worker answers."""
    asked = json.dumps({"work": job.work, "data": dict(job.data)}) + "\n"
    command = module_command("mixbackend.host.behind_worker", str(4 << 30))
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=240, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def class_of(name: str) -> Any:
    (found,) = entry_points(group="mixbackend.backends", name=name)
    return found.load()


def refuse(*_: object) -> Any:
    raise AssertionError("compiled in the user's process")


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "plain") for name in BACKENDS), *((name, "with constants") for name in BACKENDS if name != "openvino")],
)
def test_what_is_built_behind_is_loaded(
    name: str,
    kind: str,
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
    precision: Callable[[str], None],
) -> None:
    """Code depends on what torch is told of precision: the other process must be told as well."""
    precision("high" if torch.get_float32_matmul_precision() == "highest" else "highest")
    if name not in {backend.name for backend in environment.backends}:
        pytest.skip(f"{name} is not here")
    region, inputs = region_of(kind)
    backend = environment.planner.backend(name)
    job = region_job(environment.compile_cache, backend, region, "graph")
    assert job is not None
    assert done_behind(job) == {"status": "pass", "result": {"stored": True}}

    fresh = backend.compile(region)
    monkeypatch.setattr(class_of(name), "compile", refuse)
    loaded = environment.compile_cache.compile(backend, region)
    assert loaded.cached and loaded.backend == name
    assert torch.equal(loaded.region.run(inputs)[0], fresh.run(inputs)[0])
    if fresh.bind is not None:
        assert loaded.region.bind is not None
        constants = [None, *inputs[1:]]
        bound = [compiled.bind(constants).run(inputs)[0] for compiled in (loaded.region, fresh) if compiled.bind]
        assert torch.equal(*bound)


def test_a_backend_that_measures_while_it_compiles_takes_no_part() -> None:
    inductor = class_of("inductor")
    with torch._inductor.config.patch(max_autotune=False):
        assert inductor(frozenset({"cpu", "cuda"})).traits().compiles_behind == {"cpu", "cuda"}
        with torch._inductor.config.patch(max_autotune=True):
            assert not inductor(frozenset({"cpu", "cuda"})).traits().compiles_behind
