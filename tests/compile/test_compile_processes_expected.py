"""Processes that compile kernels start with the mixture where nothing is remembered, or with what is to be compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plain_backend import PlainBackend

from mixbackend.compile import mixture
from mixbackend.configuration import Config
from mixbackend.contracts import Traits
from mixbackend.contracts.torch_compat import fresh_fake_mode
from mixbackend.execute import kernel_processes
from mixbackend.graph.trace import trace_region


@pytest.fixture
def started(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(kernel_processes, "start_compile_processes", lambda: calls.append("started"))
    return calls


def config_at(folder: Path) -> Config:
    folder.chmod(0o700)
    return Config().with_options({"cache.dir": str(folder)})


@pytest.mark.parametrize("gpu", [True, False])
def test_processes_are_started_for_a_gpu_alone(started, monkeypatch, tmp_path, gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    mixture.Mixture(config_at(tmp_path))
    assert started == ["started"] * gpu


def test_where_plans_are_remembered_nothing_is_started_before_it_is_needed(started, monkeypatch, tmp_path):
    config = config_at(tmp_path)
    mixture.Mixture(config).environment(config).storage.database.rates_of("look")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    mixture.Mixture(config)
    assert started == []


@pytest.mark.parametrize(
    ("device", "behind", "expected"), [("cuda", "cuda", 1), ("cuda", "cpu", 0), ("cpu", "cuda", 0)]
)
def test_what_compiles_for_a_gpu_starts_them(started, device, behind, expected):
    class Compiler(PlainBackend):
        name = "compiler"

        def traits(self):
            return Traits(compiles_behind=frozenset({behind}))

        def compile(self, region):
            raise AssertionError("nothing is compiled here")

    with fresh_fake_mode():
        region = trace_region(torch.relu, [torch.empty(4, device=device)])
    kernel_processes.expect_kernels_of(Compiler(), region)
    assert len(started) == expected


def test_without_processes_the_mixture_is_made_all_the_same(monkeypatch, tmp_path):
    def refuse() -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernel_processes, "start_compile_processes", refuse)
    assert mixture.Mixture(config_at(tmp_path)).joint_decisions() == {}
