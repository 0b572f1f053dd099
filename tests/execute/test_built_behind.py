"""A region that another process compiled while calls went on: loaded here, and never compiled here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mixbackend import registry
from mixbackend.backends.codegen.targets.cpp import build
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import load_config
from mixbackend.contracts import Backend, Region
from mixbackend.execute import behind_build
from mixbackend.execute.behind_build import NotTheSameError, region_job
from mixbackend.graph.regions import whole_region
from mixbackend.graph.trace import trace_graph
from mixbackend.host.background import Background
from mixbackend.host.behind_budget import Figures, Limits
from mixbackend.plan.environment import Environment

PAID = Figures(calls=100, seconds=400.0)
VALUES = torch.linspace(-2.0, 2.0, 4096).reshape(64, 64)


def function(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.softmax(value * 1.25, dim=-1)) + math.pi


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return open_environment(load_config({"cache": {"dir": str(folder)}}))


@pytest.fixture
def background(environment: Environment) -> Iterator[Background]:
    made = Background(Limits(budget_s=120, share=1.0, cores=2), lambda: environment.storage.builder_lock)
    yield made
    made.close()


@pytest.fixture
def region() -> Region:
    graph_module, graph = trace_graph(function, [VALUES])
    return whole_region(graph_module, graph)


def of(environment: Environment, name: str) -> Backend:
    return environment.planner.backend(name)


def test_what_is_built_behind_is_loaded_and_not_compiled(
    environment: Environment, background: Background, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the very number of threads that the user's process has, though no thread of the other one works."""
    codegen, cache = of(environment, "codegen"), environment.compile_cache
    job = region_job(cache, codegen, region, "graph")
    assert job is not None
    number = background.submit(job)
    assert background.standing().unpaid == 1
    background.paid("graph", PAID)
    assert background.settled(120)
    (done,) = background.poll()
    assert (done.number, done.status, done.result) == (number, "pass", {"stored": True}), done.detail

    def refuse(source: str, toolchain: object) -> bytes:
        raise AssertionError("compiled in the user's process")

    monkeypatch.setattr(build, "compile_object", refuse)
    compiled = cache.compile(codegen, region)
    assert compiled.cached and compiled.backend == "codegen"
    (result,) = compiled.region.run([VALUES])
    expected = function(VALUES.double())
    assert (result.double() - expected).abs().max() <= 3 * (function(VALUES).double() - expected).abs().max() + 1e-6

    # Another process, or this one later: there is nothing to do.
    background.submit(replace(job, entry="later"))
    background.paid("later", PAID)
    assert background.settled(30)
    assert [(item.status, item.result) for item in background.poll()] == [("pass", None)]


def test_only_backends_that_say_so_are_built_behind(environment: Environment, region: Region) -> None:
    cache = environment.compile_cache
    assert region_job(cache, environment.reference, region, "graph") is None
    assert region_job(cache, of(environment, "codegen"), replace(region, key="local-1"), "graph") is None


def test_another_backend_than_the_process_has_builds_nothing(environment: Environment, region: Region) -> None:
    """A worker that finds another version, other threads or another machine would store what nobody looks for."""
    job = region_job(environment.compile_cache, of(environment, "codegen"), region, "graph")
    assert job is not None
    with pytest.raises(NotTheSameError, match="another build"):
        behind_build.build(**{**job.data, "fingerprint": "another build"})
    assert environment.storage.store.usage() == (0, 0)
    assert registry.resolve(("codegen",))
