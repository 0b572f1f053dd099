"""Where there is a GPU, processes that compile kernels are started with the mixture, before the first graph comes."""

from __future__ import annotations

import pytest
import torch

from mixbackend.compile import mixture
from mixbackend.configuration import Config


@pytest.fixture
def started(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(mixture, "start_compile_processes", lambda: calls.append("started"))
    return calls


@pytest.mark.parametrize("gpu", [True, False])
def test_processes_are_started_for_a_gpu_alone(started, monkeypatch, gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    mixture.Mixture(Config())
    assert started == ["started"] * gpu


def test_without_processes_the_mixture_is_made_all_the_same(monkeypatch):
    def refuse() -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mixture, "start_compile_processes", refuse)
    assert mixture.Mixture(Config()).joint_decisions() == {}
