"""Code that must not run twice at once has one lock, whatever layer, copy of a model or binding it is called by."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from foreign_backends import Call, Foreign, mixture_of
from torch import nn

from mixbackend.contracts import BoundRun, CompiledRegion

SOFTMAX = "aten._softmax.default"


class Layers(nn.Module):
    """Three equal layers, whose softmax somebody else runs."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            value = torch.softmax(value, -1).sin()
        return value


class OneAtATime:
    """Sees whether two calls of one region, or of one binding of it, overlap."""

    def __init__(self) -> None:
        self.inside: dict[tuple[str, int], int] = {}
        self.overlaps = 0

    def __call__(self, call: Call) -> Sequence[Any]:
        key = (call.region.key, call.bound)
        self.overlaps += self.inside.get(key, 0)
        self.inside[key] = self.inside.get(key, 0) + 1
        time.sleep(0.003)
        outputs = call.right()
        self.inside[key] -= 1
        return outputs


def in_threads(*runs: Any) -> list[torch.Tensor]:
    results: list[torch.Tensor] = []

    def work(run: Any) -> None:
        # Gradients are a thread's own setting: with others the graph would be compiled once more, in both threads.
        with torch.no_grad():
            results.extend(run() for _ in range(6))

    threads = [threading.Thread(target=work, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_equal_layers_share_a_lock(tmp_path):
    seen = OneAtATime()
    backend = Foreign(seen, only=[SOFTMAX], reentrant=False)
    with mixture_of(backend, folder=tmp_path) as mixture, torch.no_grad():
        model, value = Layers(), torch.randn(4, 8)
        compiled = torch.compile(model, backend=mixture)
        expected = compiled(value)
        assert len(backend.compiled) == 1, "the layers share their code"
        results = in_threads(lambda: compiled(value), lambda: compiled(value))
    assert seen.overlaps == 0
    for result in results:
        torch.testing.assert_close(result, expected)


def test_graphs_that_share_code_share_its_lock(tmp_path):
    seen = OneAtATime()
    backend = Foreign(seen, only=[SOFTMAX], reentrant=False)
    with mixture_of(backend, folder=tmp_path) as mixture, torch.no_grad():
        value = torch.randn(4, 8)
        first = torch.compile(lambda value: torch.softmax(value, -1).sin(), backend=mixture)
        second = torch.compile(lambda value: torch.softmax(value, -1).cos(), backend=mixture)
        first(value), second(value)
        assert len(backend.compiled) == 1
        in_threads(lambda: first(value), lambda: second(value))
    assert seen.overlaps == 0


@pytest.mark.parametrize("shared", [True, False])
def test_a_binding_has_a_lock_and_shares_it_with_its_equals(tmp_path, shared):
    """A backend that gives one piece of code for equal constants is called in turn; different bindings are not."""
    seen = OneAtATime()

    class Binder(Foreign):
        def compile(self, region):
            compiled = super().compile(region)
            made: list[BoundRun] = []

            def bind(constants: Sequence[torch.Tensor | None]) -> BoundRun:
                if not made or not shared:
                    made.append(compiled.bind(constants))
                return made[-1]

            return CompiledRegion(compiled.run, bind=bind)

    backend = Binder(seen, only=["aten.mul.Tensor"], binds=True, reentrant=False)
    with mixture_of(backend, folder=tmp_path) as mixture, torch.no_grad():

        class Scale(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(8))

            def forward(self, value: torch.Tensor) -> torch.Tensor:
                return (value * self.weight).sin()

        value = torch.randn(4, 8)
        first = Scale()
        models = [torch.compile(model, backend=mixture) for model in (first, copy.deepcopy(first))]
        for model in models:
            model(value)
        results = in_threads(*(lambda model=model: model(value) for model in models))
    assert seen.overlaps == 0
    for result in results:
        torch.testing.assert_close(result, first(value))
