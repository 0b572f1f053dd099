"""Full collections of garbage wait while a graph is compiled, and only then."""

from __future__ import annotations

import gc
import importlib
from typing import Any

import pytest
import torch

import mixbackend
from mixbackend.contracts import CompiledRegion, Region
from mixbackend.host.full_collections import full_collections_later


@pytest.fixture
def thresholds():
    """Low ones, so that a few thousand values are enough for a full collection."""
    before, callbacks = gc.get_threshold(), gc.callbacks[:]
    # What other tests left is not walked again and again, nor by those who are told of collections.
    gc.callbacks.clear()
    gc.freeze()
    gc.collect()
    gc.set_threshold(50, 2, 2)
    yield gc.get_threshold
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.callbacks.extend(callbacks)


def full_collections_of(values: int) -> int:
    """How many there are while so many values are made that stay."""
    before = gc.get_stats()[2]["collections"]
    kept = [[place] for place in range(values)]
    assert len(kept) == values
    return int(gc.get_stats()[2]["collections"]) - before


def test_none_begins_meanwhile(thresholds):
    many = 4 * len(gc.get_objects()) + 10_000
    assert full_collections_of(many) > 0
    with full_collections_later():
        assert full_collections_of(many) == 0
    assert thresholds() == (50, 2, 2)


def test_what_is_asked_for_happens(thresholds):
    before = gc.get_stats()[2]["collections"]
    with full_collections_later():
        gc.collect()
    assert gc.get_stats()[2]["collections"] > before


def test_they_come_back_with_the_last_that_compiles_and_after_errors(thresholds):
    with pytest.raises(RuntimeError), full_collections_later():
        with full_collections_later():
            pass
        assert thresholds()[2] > 1000
        raise RuntimeError
    assert thresholds() == (50, 2, 2)


def test_thresholds_that_somebody_sets_meanwhile_stay(thresholds):
    with full_collections_later():
        gc.set_threshold(60, 3, 7)
    assert thresholds() == (60, 3, 7)


def test_graphs_are_compiled_so(make_mixture: Any, faulty: Any, thresholds):
    seen: list[tuple[int, int, int]] = []

    class Watching(faulty):
        name = "watching"

        def compile(self, region: Region) -> CompiledRegion:
            seen.append(gc.get_threshold())
            return super().compile(region)

    compiled = torch.compile(lambda value: torch.relu(value) + 1.0, backend=make_mixture(Watching()))
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert seen and all(old > 1000 for _, _, old in seen)
    assert thresholds() == (50, 2, 2)


def test_our_modules_are_loaded_so(thresholds, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[int, int, int]] = []

    def loading(name: str) -> Any:
        seen.append(gc.get_threshold())
        return importlib.import_module(name)

    monkeypatch.setattr(mixbackend, "import_module", loading)
    assert callable(mixbackend.auto)
    assert [old > 1000 for _, _, old in seen] == [True]
    assert thresholds() == (50, 2, 2)
