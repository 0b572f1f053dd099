"""What graphs of one configuration share: a value whose parts open nothing before they are asked."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import load_config
from mixbackend.contracts import QuarantinedError
from mixbackend.graph.trace import trace_region
from mixbackend.plan.environment import Environment
from mixbackend.registry import isolated_registry


@pytest.fixture
def opened(tmp_path: Path, loopback: Any) -> Any:
    def make(behind: bool = False) -> Environment:
        return open_environment(load_config({"cache": {"dir": str(tmp_path / "cache")}}), behind=behind)

    with isolated_registry(loopback, EagerBackend()):
        yield make


def test_nothing_is_on_disk_before_somebody_asks(opened: Any, tmp_path: Path) -> None:
    environment = opened()
    assert not (tmp_path / "cache").exists()
    assert environment.storage.database is environment.storage.database
    assert (tmp_path / "cache").exists()


def test_it_is_a_value(opened: Any) -> None:
    environment = opened()
    with pytest.raises(dataclasses.FrozenInstanceError):
        environment.records = True
    assert environment.reference in environment.backends and environment.reference.traits().reference
    assert environment.planner.backends == environment.backends
    assert list(environment.fingerprints) == [backend.name for backend in environment.backends]


def test_what_failed_is_not_compiled_again_here_nor_by_others(opened: Any, loopback: Any) -> None:
    here, there = opened(), opened()
    region = trace_region(torch.mul, (torch.randn(4), torch.randn(4)))
    backend = here.planner.backend(loopback.name)
    first = here.compile_cache.compile(backend, region)
    assert here.compile_cache.compile(backend, region).code is first.code
    here.compile_cache.quarantine(backend, region, "bad driver")
    for environment in (here, there):
        with pytest.raises(QuarantinedError, match="bad driver"):
            environment.compile_cache.compile(environment.planner.backend(loopback.name), region)
        assert environment.compile_cache.compile(environment.reference, region).backend == environment.reference.name


def test_behind_nothing_is_compiled_that_runs_kernels_meanwhile(opened: Any, loopback: Any) -> None:
    environment = opened(behind=True)
    region = trace_region(torch.mul, (torch.randn(4), torch.randn(4)))
    backend = environment.planner.backend(loopback.name)
    assert "cpu" not in backend.traits().compiles_behind
    assert environment.compile_cache.compile(backend, region).backend == environment.reference.name
