"""A challenger on every backend that says so is compiled by another process, and this one loads what came of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config

from mixbackend.backends.common.python_process import module_command
from mixbackend.compile.challenger_build import challenger_job
from mixbackend.compile.driver import prepared_graph
from mixbackend.compile.entry import Entry
from mixbackend.compile.open_environment import open_environment
from mixbackend.compile.propose import propose
from mixbackend.compile.sized_graph import Row
from mixbackend.configuration import load_config
from mixbackend.contracts import InputRole, Region
from mixbackend.contracts.region_text import read_region_text
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.identity import Captured
from mixbackend.graph.trace import trace_region
from mixbackend.host.background import Job
from mixbackend.plan.choice import Choice
from mixbackend.plan.environment import Environment
from mixbackend.select.decision import Decision

BACKENDS = ("codegen", "inductor", "onnxruntime", "openvino")
VALUES = torch.linspace(-2.0, 2.0, 4096).reshape(64, 64)
WEIGHT, BIAS = VALUES.cos(), torch.linspace(0.0, 1.0, 64)


def pointwise(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.softmax(value * 1.25, dim=-1)) + 0.5


def dense(value: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(value @ weight + bias)


def graph_of(kind: str) -> tuple[Region, list[torch.Tensor]]:
    if kind == "plain":
        return trace_region(pointwise, [VALUES]), [VALUES]
    inputs = [VALUES, WEIGHT, BIAS]
    roles = {place: PlaceholderRole(InputRole.CONSTANT) for place in (1, 2)}
    return trace_region(dense, inputs, roles=roles), inputs


def environment_in(folder: Path, *backends: str) -> Environment:
    folder.mkdir(mode=0o700)
    return open_environment(load_config({"cache": {"dir": str(folder)}, "backends": [*backends, "eager"]}))


def done_behind(job: Job) -> dict[str, Any]:
    """What a worker answers."""
    asked = json.dumps({"work": job.work, "data": dict(job.data)}) + "\n"
    command = module_command("mixbackend.host.behind_worker", str(4 << 30))
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=240, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def built_here(graph: Region, choice: Choice, environment: Environment, inputs: list[torch.Tensor]) -> Entry:
    """As the user's process builds a challenger, bound to its constants."""
    captured = Captured.of_region(read_region_text(graph.text), "graph")
    outlook = propose(captured, prepared_graph(captured, environment), environment, Decision(choice))
    assert outlook.sized is not None
    entry = Row.begun(outlook.sized, "graph", environment).home
    entry.bind({item.name: inputs[place] for place, item in enumerate(graph.inputs) if place})
    return entry


def class_of(name: str) -> Any:
    (found,) = entry_points(group="mixbackend.backends", name=name)
    return found.load()


def refuse(*_: object) -> Any:
    raise AssertionError("compiled in the user's process")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "plain") for name in BACKENDS), *((name, "with constants") for name in BACKENDS if name != "openvino")],
)
def test_what_is_built_behind_is_loaded(
    name: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: Callable[[str], None],
) -> None:
    """Code depends on what torch is told of precision: the other process must be told as well."""
    precision("high" if torch.get_float32_matmul_precision() == "highest" else "highest")
    if name not in {item.name for item in entry_points(group="mixbackend.backends")}:
        pytest.skip(f"{name} is not here")
    graph, inputs = graph_of(kind)
    fresh = built_here(graph, Choice(single=name), environment_in(tmp_path / "other", name), inputs)

    environment = environment_in(tmp_path / "cache", name)
    answer = done_behind(challenger_job(graph.text, Choice(single=name), environment, "graph"))
    assert answer["status"] == "pass", answer
    monkeypatch.setattr(class_of(name), "compile", refuse)
    loaded = built_here(graph, Choice.from_dict(answer["result"]["choice"]), environment, inputs)
    assert [(item.backend, item.cached) for item in loaded.program.compiled] == [(name, True)]
    assert torch.equal(loaded(list(inputs))[0], fresh(list(inputs))[0])


def test_a_backend_that_differs_has_no_part_in_what_is_built_behind(tmp_path: Path) -> None:
    """One that is registered in the user's process alone, or was told something that the worker is not."""
    environment = environment_in(tmp_path / "cache", "codegen", "onednn")
    told = {**environment.fingerprints, "onednn": "told otherwise", "mine": "of this process"}
    job = challenger_job(graph_of("plain")[0].text, Choice(every=True), environment, "graph")
    answer = done_behind(replace(job, data={**job.data, "fingerprints": told}))
    assert answer["status"] == "pass", answer
    mine, onednn = answer["result"]["left_out"]
    assert mine == "mine is None behind, and 'of this process' in the process" and "'told otherwise'" in onednn
    plan = Choice.from_dict(answer["result"]["choice"]).plan
    assert plan is not None and {item.backend for item in plan.regions} <= {"codegen", "eager"}


def test_a_worker_takes_over_settings_of_inductor(tmp_path: Path) -> None:
    graph, _ = graph_of("plain")
    with torch._inductor.config.patch({"fallback_random": True, "cpp.enable_kernel_profile": True}):
        environment = environment_in(tmp_path / "cache", "inductor")
        answer = done_behind(challenger_job(graph.text, Choice(single="inductor"), environment, "graph"))
    assert answer["status"] == "pass" and not answer["result"]["left_out"], answer


@pytest.mark.nightly
def test_another_backend_than_the_process_has_builds_nothing(tmp_path: Path) -> None:
    """A worker that finds another version, other threads or another machine would store what nobody looks for."""
    environment = environment_in(tmp_path / "cache", "codegen")
    job = challenger_job(graph_of("plain")[0].text, Choice(single="codegen"), environment, "graph")
    answer = done_behind(replace(job, data={**job.data, "fingerprints": {"codegen": "another build"}}))
    assert answer["status"] == "failed" and "another build" in answer["detail"]
    assert environment.storage.store.usage() == (0, 0)


def test_a_backend_that_measures_while_it_compiles_takes_no_part() -> None:
    inductor = class_of("inductor")
    with torch._inductor.config.patch(max_autotune=False):
        assert inductor(frozenset({"cpu", "cuda"})).traits().compiles_behind == {"cpu", "cuda"}
        with torch._inductor.config.patch(max_autotune=True):
            assert not inductor(frozenset({"cpu", "cuda"})).traits().compiles_behind
