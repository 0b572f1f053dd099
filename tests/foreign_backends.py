"""A backend as a stranger writes it, which can be made to misbehave, and mixtures that prefer it to eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from flat_costs import FlatCosts
from plain_backend import PlainBackend

from mixbackend.backends.eager import EagerBackend
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.contracts import (
    Backend,
    BoundRun,
    CompiledRegion,
    OpView,
    Region,
    Supported,
    Traits,
    Unsupported,
    Verdict,
    refuse_special,
)
from mixbackend.cost import costs as costs_module
from mixbackend.registry import isolated_registry

Behaviour = Callable[["Call"], Sequence[Any]]


class Call:
    """One call of a region.

    Attributes:
        number: how many calls of this backend came before, of all regions.
        region, inputs: what is called.
        bound: number of the binding, 0 for code without constants inside.
    """

    def __init__(self, number: int, region: Region, inputs: Sequence[Any], bound: int = 0) -> None:
        self.number, self.region, self.inputs, self.bound = number, region, inputs, bound

    def right(self) -> list[torch.Tensor]:
        """What eager returns, in fresh memory; written inputs are written, and no version counts it."""
        values = [value.data if isinstance(value, torch.Tensor) else value for value in self.inputs]
        outputs = self.region.graph_module.forward(*values)
        pairs = zip(outputs, self.region.outputs, strict=True)
        return [value.clone() if item.alias_of is None else self.inputs[item.alias_of] for value, item in pairs]


class Foreign(PlainBackend):
    """Runs regions with torch, behaves as it is told, and promises nothing.

    Args:
        behave: what a call returns; by default what is right.
        only: operators that it takes; all that it may where empty.
        binds: whether it makes code for known constants.
        traits: what it declares.
    """

    name = "foreign"

    def __init__(
        self, behave: Behaviour = Call.right, only: Collection[str] = (), binds: bool = False, **traits: Any
    ) -> None:
        self.behave = behave
        self.only = only
        self.binds = binds
        self.calls = 0
        self.bindings = 0
        self.compiled: list[Region] = []
        self._traits = Traits(**({"weights": "refit"} if binds else {}), **traits)

    def traits(self) -> Traits:
        return self._traits

    def judge(self, view: OpView) -> Verdict:
        refused = refuse_special(view, writes_inputs=self._traits.writes_inputs)
        if refused is None and self.only and view.op not in self.only:
            refused = Unsupported("declined", "not mine")
        return refused or Supported()

    def compile(self, region: Region) -> CompiledRegion:
        self.compiled.append(region)
        run = self._runner(region, [None] * len(region.inputs), 0)

        def bind(constants: Sequence[torch.Tensor | None]) -> BoundRun:
            self.bindings += 1
            kept = [None if value is None else value.clone() for value in constants]
            return BoundRun(self._runner(region, kept, self.bindings))

        return CompiledRegion(run, bind=bind if self.binds else None, strides="unknown")

    def _runner(self, region: Region, kept: Sequence[Any], bound: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
        def run(inputs: Sequence[Any]) -> Sequence[Any]:
            self.calls += 1
            values = [given if own is None else own for own, given in zip(kept, inputs, strict=True)]
            return self.behave(Call(self.calls - 1, region, values, bound))

        return run


@contextlib.contextmanager
def mixture_of(*backends: Backend, folder: Path, **options: Any) -> Iterator[Mixture]:
    """A mixture of these backends and eager, which costs a thousand times more; repairs unless told otherwise."""
    settings = {
        "backends": [*(backend.name for backend in backends), "eager"],
        "cache": {"dir": str(folder / "cache")},
        "on_failure": "repair",
        **options,
    }
    torch._dynamo.reset()
    costs = FlatCosts(seconds={"eager": 1e-3})
    priced = mock.patch.object(costs_module, "cost_model", lambda *_, **__: costs)
    with priced, isolated_registry(*backends, EagerBackend()):
        yield Mixture(load_config(settings))
    torch._dynamo.reset()


def kinds(mixture: Mixture) -> list[str]:
    """Kinds of the events so far."""
    return [event.kind for event in mixture.report().events]


def owners(mixture: Mixture, graph: int = 0) -> set[str]:
    """Who runs a graph's regions by the report."""
    return {region["backend"] for region in mixture.report().to_dict()["graphs"][graph]["regions"]}
