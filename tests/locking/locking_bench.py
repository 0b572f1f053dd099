"""A small model, compiled with and without a lock file; nothing is measured unless a test says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mixbackend.compile.mixture import Mixture
from mixbackend.compile.open_environment import open_environment
from mixbackend.configuration import load_config
from mixbackend.contracts import LockError
from mixbackend.cost import costs as costs_module
from mixbackend.locking.differences import made_with
from mixbackend.locking.making import locked_graphs, locked_joints, merged
from mixbackend.locking.model import LockFile
from mixbackend.locking.text import write_lock
from mixbackend.partitioner.placement import Placements
from mixbackend.plan.joint_decision import JointDecision
from mixbackend.reporting import Report

COMMAND = "mixbackend tune small:make"
VALUE = torch.randn(4, 64)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.norm(value + self.narrow(nn.functional.gelu(self.wide(value))))


class Small(nn.Module):
    """Two layers: regions of several backends, and modules with names."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(width), Layer(width)])

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            value = layer(value)
        return value


@dataclass
class Run:
    """What came of compiling and calling a model."""

    mixture: Mixture
    outputs: list[torch.Tensor]
    report: Report
    joint_decisions: dict[str, JointDecision]

    def plans(self) -> list[list[tuple[Any, ...]]]:
        """Backend and nodes of every region of every graph."""
        return [
            [(region.backend, region.nodes, region.copies) for region in graph.plan.regions]
            for graph in self.report.graphs
        ]

    def told(self) -> list[str]:
        """Details of the events about the lock."""
        return [event.detail for event in self.report.events if event.kind == "lock"]


@contextlib.contextmanager
def no_search() -> Iterator[None]:
    """Whoever searches for a placement, or asks what something costs, fails."""

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("a search, or a cost, was asked for")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Placements, "plan", refuse)
        patch.setattr(costs_module, "cost_model", refuse)
        yield


@dataclass
class Bench:
    """A folder with a lock file and caches."""

    folder: Path

    @property
    def lock(self) -> Path:
        return self.folder / "mixbackend.lock.yaml"

    def settings(self, cache: str, **settings: Any) -> dict[str, Any]:
        chosen = {"backends": ["codegen", "onednn", "eager"], "cache": {"dir": str(self.folder / cache)}}
        return {**chosen, "lock": {"path": str(self.lock)}, **settings}

    def run(
        self,
        model: Callable[..., Any],
        values: Sequence[torch.Tensor],
        cache: str = "cache",
        train: bool = False,
        dynamic: bool | None = None,
        searching: bool = True,
        **settings: Any,
    ) -> Run:
        """Compile a model as a process of its own would, and call it once with every value.

        Args:
            searching: whether it may search for a placement, or ask what something costs.
        """
        torch._dynamo.reset()
        mixture = Mixture(load_config(self.settings(cache, **settings)))
        compiled = torch.compile(model, backend=mixture, dynamic=dynamic)
        outputs = []
        with torch.set_grad_enabled(train), contextlib.nullcontext() if searching else no_search():
            for value in values:
                outputs.append(compiled(value))
                if train:
                    outputs[-1].square().mean().backward()
        return Run(mixture, outputs, mixture.report(), mixture.joint_decisions())

    def write(self, run: Run, made_by: str = COMMAND, old: LockFile | None = None) -> LockFile:
        """Lock what a run placed."""
        environment = open_environment(run.mixture.config)
        graphs, joints = locked_graphs(run.report.graphs, made_by), locked_joints(run.joint_decisions, made_by)
        file, _ = merged(old, made_with(environment.backends), graphs, joints, made_by)
        write_lock(self.lock, file)
        return file

    def frozen(self) -> dict[str, Any]:
        """The part of a configuration that makes differences errors."""
        return {"lock": {"path": str(self.lock), "frozen": True}}


def locked(bench: Bench, model: nn.Module, value: torch.Tensor = VALUE, **settings: Any) -> Run:
    """Place a model by estimates, and lock that."""
    run = bench.run(model, [value], **settings)
    bench.write(run)
    return run


def owners(run: Run) -> set[str]:
    """Backends that run something."""
    return {backend for graph in run.plans() for backend, _, _ in graph}


def error_of(make: Callable[[], object]) -> str:
    """Text of the lock error, out of what Dynamo makes of it."""
    with pytest.raises(Exception) as caught:
        make()
    error = getattr(caught.value, "inner_exception", None) or caught.value
    assert isinstance(error, LockError), f"{type(error).__name__}: {error}"
    assert str(error) in str(caught.value)
    return str(error)


def edit(bench: Bench, *changes: tuple[str, str]) -> None:
    text = bench.lock.read_text()
    for old, new in changes:
        assert old in text, (old, text)
        text = text.replace(old, new, 1)
    bench.lock.write_text(text)
