"""Regions of one graph are compiled side by side where their backend says that this is safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mixbackend.contracts import Backend, CompiledRegion, Region, Traits, Unsupported, Verdict


@pytest.fixture
def meeting(faulty: type[Any]) -> Callable[[bool], Backend]:
    """A backend whose compilations wait for one another for a moment and count how many met."""

    class Meeting(faulty):  # type: ignore[misc]
        name = "meeting"

        def __init__(self, concurrent: bool) -> None:
            super().__init__()
            self._concurrent = concurrent
            self._barrier = threading.Barrier(2)
            self.met = 0

        def traits(self) -> Traits:
            return replace(super().traits(), concurrent_compile=self._concurrent)

        def judge(self, view: Any) -> Verdict:
            if view.op == "aten.sin.default":
                return Unsupported("declined", "so that there are two regions")
            return super().judge(view)

        def compile(self, region: Region) -> CompiledRegion:
            try:
                self._barrier.wait(timeout=5.0 if self._concurrent else 0.2)
                self.met += 1
            except threading.BrokenBarrierError:
                self._barrier.reset()
            return super().compile(region)

    return Meeting


def two_regions(value: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.sin(torch.exp(value))) + 1.0


@pytest.mark.parametrize(("allowed", "met"), [(True, 2), (False, 0)])
def test_compilations_meet_where_the_backend_allows_it(
    make_mixture: Any, meeting: Any, allowed: bool, met: int
) -> None:
    backend = meeting(allowed)
    compiled = torch.compile(two_regions, backend=make_mixture(backend))
    value = torch.randn(8)
    torch.testing.assert_close(compiled(value), two_regions(value))
    assert backend.met == met and len(backend.compiled) == 2


def test_one_such_region_is_compiled_beside_those_of_other_backends(make_mixture: Any, faulty: Any) -> None:
    """As a generated kernel that compiles in another process while the rest of a model is written."""
    begun, met = threading.Event(), []

    class Beside(faulty):  # type: ignore[misc]
        name = "beside"

        def traits(self) -> Traits:
            return replace(super().traits(), concurrent_compile=True)

        def judge(self, view: Any) -> Verdict:
            return super().judge(view) if view.op == "aten.sin.default" else Unsupported("declined", "one region")

        def compile(self, region: Region) -> CompiledRegion:
            begun.set()
            return super().compile(region)

    class Writer(faulty):  # type: ignore[misc]
        name = "writer"

        def judge(self, view: Any) -> Verdict:
            return Unsupported("declined", "the other's") if view.op == "aten.sin.default" else super().judge(view)

        def compile(self, region: Region) -> CompiledRegion:
            met.append(begun.wait(timeout=2.0))
            return super().compile(region)

    compiled = torch.compile(two_regions, backend=make_mixture(Beside(), Writer()))
    value = torch.randn(8)
    torch.testing.assert_close(compiled(value), two_regions(value))
    assert met == [True, True]
