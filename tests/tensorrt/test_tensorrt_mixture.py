"""Models through the whole of a mixture: engines are built, stored, verified, and replaced where they fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flat_costs import FlatCosts

from mixbackend.backends.eager import EagerBackend
from mixbackend.backends.onnxruntime import OnnxRuntimeBackend
from mixbackend.backends.tensorrt import building
from mixbackend.compile.mixture import Mixture
from mixbackend.configuration import load_config
from mixbackend.cost import costs as costs_module
from mixbackend.registry import isolated_registry
from mixbackend.storage import ArtifactStore

from .conftest import NEWEST, OLDEST

_IN_THIS_ORDER = FlatCosts(seconds={"tensorrt": 1e-4, "onnxruntime": 2e-4, "eager": 1e-3})
"""An engine is the quickest, then a session, then eager."""


class Small(torch.nn.Module):
    """Two convolutions, a mean and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        value = torch.relu(self.second(torch.relu(self.first(image))))
        return self.head(value.mean((2, 3)))


def _notes(run: Compiled) -> tuple[str, ...]:
    return tuple(note for graph in run.mixture._graphs.records(advice=False) for note in graph.regions[0].notes)


class Compiled:
    """A model compiled by a mixture of the backend, ONNX Runtime and eager."""

    def __init__(self, model: torch.nn.Module, mixture: Mixture, dynamic: bool | None) -> None:
        self.model = model
        self.mixture = mixture
        self._compiled = torch.compile(model, backend=mixture, dynamic=dynamic)

    def check(self, *inputs: torch.Tensor) -> None:
        """Eager's results."""
        with torch.no_grad():
            torch.testing.assert_close(self._compiled(*inputs), self.model(*inputs), rtol=1e-4, atol=1e-5)

    @property
    def regions(self) -> list[dict[str, Any]]:
        return [region for graph in self.mixture.report().to_dict()["graphs"] for region in graph["regions"]]

    @property
    def owners(self) -> set[str]:
        return {region["backend"] for region in self.regions}

    @property
    def events(self) -> list[str]:
        return [f"{event['kind']}: {event['detail']}" for event in self.mixture.report().to_dict()["events"]]


@pytest.fixture
def compiled(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Compiled]]:
    """Compiles a model; each call is like a process of its own with one cache folder."""
    monkeypatch.setattr(costs_module, "cost_model", lambda *arguments, **keywords: _IN_THIS_ORDER)
    torch.manual_seed(0)
    contexts = []

    def make(made: Any, model: torch.nn.Module | None = None, dynamic: bool | None = None, **options: Any) -> Compiled:
        torch._dynamo.reset()
        context = isolated_registry(made.another_backend(), OnnxRuntimeBackend(), EagerBackend())
        context.__enter__()
        contexts.append(context)
        settings = {
            "backends": ["tensorrt", "onnxruntime", "eager"],
            "cache": {"dir": str(tmp_path / "cache")},
            **options,
        }
        return Compiled((model or Small()).eval(), Mixture(load_config(settings)), dynamic)

    yield make
    for context in reversed(contexts):
        context.__exit__(None, None, None)


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_a_model_runs_as_one_engine_and_the_next_process_takes_it_up(bench, compiled, release) -> None:
    made, image = bench(release), torch.randn(2, 3, 8, 8)
    first = compiled(made)
    first.check(image)
    assert first.owners == {"tensorrt"} and not first.events
    assert len(first.regions) == 1
    (graph,) = first.mixture._graphs.records(advice=False)
    assert any(note.startswith("engine built in") for note in graph.regions[0].notes)
    assert any("scratch memory" in note for note in graph.regions[0].notes)
    assert made.builds == 1
    second = compiled(made, first.model)
    second.check(image)
    assert second.regions[0]["cached"] and made.builds == 1


def test_changed_weights_are_seen_without_a_build(bench, compiled) -> None:
    made, image = bench(NEWEST), torch.randn(2, 3, 8, 8)
    run = compiled(made)
    run.check(image)
    with torch.no_grad():
        run.model.first.weight.mul_(2)
    run.check(image)
    assert any(event.startswith("weights_rebuilt") for event in run.events)
    assert run.owners == {"tensorrt"} and made.builds == 1


def test_engines_with_weights_inside_are_stored_for_each_of_their_values(bench, compiled) -> None:
    made, image = bench(OLDEST), torch.randn(2, 3, 8, 8)
    first = compiled(made)
    first.check(image)
    assert made.builds == 1 and "taken from the cache" not in _notes(first)
    original = first.model.first.weight.detach().clone()
    with torch.no_grad():
        first.model.first.weight.mul_(2)
    first.check(image)
    _until(lambda: "taken from the cache" in _checked_notes(first, image))
    assert made.builds == 2 and any(event.startswith("weights_rebuilt") for event in first.events)
    second = compiled(made, first.model)
    second.check(image)
    assert made.builds == 2 and second.owners == {"tensorrt"} and "taken from the cache" in _notes(second)
    with torch.no_grad():
        second.model.first.weight.copy_(original)
    second.check(image)
    assert made.builds == 2, "these values were there before"


def _checked_notes(run: Compiled, image: torch.Tensor) -> tuple[str, ...]:
    run.check(image)
    return _notes(run)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.01)


def test_nobody_waits_for_an_engine_with_changed_weights(bench, compiled) -> None:
    made, image = bench(OLDEST), torch.randn(2, 3, 8, 8)
    run = compiled(made)
    run.check(image)
    begun, go_on, build = threading.Event(), threading.Event(), made.run_build

    def slow(folder: Path, seconds: float) -> None:
        begun.set()
        assert go_on.wait(20)
        build(folder, seconds)

    made.run_build = slow
    weight = run.model.first.weight
    with torch.no_grad():
        weight.mul_(2)
    run.check(image)
    assert begun.wait(20) and made.builds == 1, "the call did not wait"
    assert any("eager runs 1 regions until" in event for event in run.events)
    # Values that are changed once more: what is being built for others is not taken.
    with torch.no_grad():
        weight.mul_(2)
    run.check(image)
    go_on.set()
    _until(lambda: any("scratch memory" in note for note in _checked_notes(run, image)))
    run.check(image)
    assert run.owners == {"tensorrt"} and made.builds == 3
    assert not any("verify_failed" in event or "quarantine" in event for event in run.events)


def test_an_engine_that_cannot_be_built_for_changed_weights_gives_its_region_to_others(bench, compiled) -> None:
    made, image = bench(OLDEST), torch.randn(2, 3, 8, 8)
    run = compiled(made)
    run.check(image)

    def refuse(folder: Path, seconds: float) -> None:
        raise building.BuildError("no memory is left")

    made.run_build = refuse
    with torch.no_grad():
        run.model.first.weight.mul_(2)
    run.check(image)

    def moved() -> bool:
        run.check(image)
        return "tensorrt" not in run.owners

    _until(moved)
    run.check(image)
    assert any("no memory is left" in event for event in run.events)


@pytest.mark.parametrize("stored", [True, False])
def test_restless_weights_do_not_pile_up_engines(bench, compiled, monkeypatch, stored) -> None:
    made, image = bench(OLDEST), torch.randn(2, 3, 8, 8)
    run = compiled(made)
    run.check(image)
    if not stored:
        monkeypatch.setattr(ArtifactStore, "put", lambda *arguments: False)
    for _ in range(3):
        with torch.no_grad():
            run.model.first.weight.mul_(1.1)
        run.check(image)
    _until(lambda: any("scratch memory" in note for note in _checked_notes(run, image)))
    run.check(image)
    assert run.owners == {"tensorrt"} and made.builds <= 4


def test_an_engine_that_is_wrong_inside_of_the_store_is_found_out(bench, compiled, tmp_path) -> None:
    """One whose bytes are as they were written, but which its backend does not take."""
    made, image = bench(OLDEST), torch.randn(2, 3, 8, 8)
    first = compiled(made)
    first.check(image)
    store = ArtifactStore.open(tmp_path / "cache")
    (key,) = (item.key for item in store.artifacts() if b"fake engine" in store.read(item.key).content)
    entry = store.read(key)
    store.put(key, entry.content.replace(b"fake engine", b"fake angina"), entry.label)
    second = compiled(made, first.model)
    second.check(image)
    assert second.owners == {"tensorrt"} and made.builds == 2 and "taken from the cache" not in _notes(second)
    assert b"fake engine" in store.read(key).content


@pytest.mark.parametrize(("release", "right"), [(OLDEST, True), (NEWEST, False)])
def test_releases_that_are_wrong_with_weights_given_anew_are_not_asked_for_it(bench, compiled, release, right) -> None:
    run = compiled(bench(release, fault="wrong refit"))
    run.check(torch.randn(2, 3, 8, 8))
    assert ("tensorrt" in run.owners) == right
    assert any(event.startswith("verify_failed") for event in run.events) != right


class _Apart(torch.nn.Module):
    """Two products with an op between them that engines do not take."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = torch.digamma(torch.relu(self.first(value)) + 2)
        return torch.relu(self.second(value))


def test_regions_with_weights_inside_are_built_side_by_side(bench, compiled) -> None:
    made = bench(OLDEST)
    both, build = threading.Barrier(2, timeout=20), made.run_build

    def meet(folder: Path, seconds: float) -> None:
        both.wait()
        build(folder, seconds)

    made.run_build = meet
    run = compiled(made, _Apart())
    run.check(torch.randn(4, 16))
    assert [region["backend"] for region in run.regions].count("tensorrt") == 2 and made.builds == 2, run.events


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        ("build", "quarantine: does not compile: BuildError: TensorRT builds no engine"),
        ("parse", "quarantine: does not compile: BuildError"),
        ("run", "quarantine: RuntimeError: TensorRT refused to run"),
        ("wrong", "verify_failed"),
    ],
)
def test_a_region_that_fails_goes_to_the_next_best_backend(bench, compiled, fault, wanted) -> None:
    made, image = bench(fault=fault), torch.randn(2, 3, 8, 8)
    run = compiled(made)
    run.check(image)
    run.check(image)
    assert "tensorrt" not in run.owners and "onnxruntime" in run.owners
    assert any(event.startswith(wanted) for event in run.events), run.events
    builds = made.builds
    compiled(made, run.model).check(image)
    assert made.builds == builds, "what failed is not tried again"


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_a_damaged_engine_in_the_cache_is_built_again(bench, compiled, tmp_path, release) -> None:
    made, image = bench(release), torch.randn(2, 3, 8, 8)
    first = compiled(made)
    first.check(image)
    damaged = 0
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file() and b"fake engine" in path.read_bytes():
            path.write_bytes(path.read_bytes().replace(b"fake engine", b"fake angina"))
            damaged += 1
    assert damaged == 1
    second = compiled(made, first.model)
    second.check(image)
    assert second.owners == {"tensorrt"} and made.builds == 2
    # With its weights inside, an engine is stored beside what is known of the region without them.
    assert second.regions[0]["cached"] == (release == OLDEST)


def test_several_sizes_go_through_one_engine(bench, compiled) -> None:
    made = bench(NEWEST)
    run = compiled(made, dynamic=True)
    for count in (6, 9, 12):
        run.check(torch.randn(count, 3, 8, 8))
    assert "tensorrt" in run.owners and made.builds == 1


def test_live_weights_leave_convolutions_to_others(bench, compiled) -> None:
    run = compiled(bench(), weights="live")
    run.check(torch.randn(2, 3, 8, 8))
    refusals = [item for graph in run.mixture.report().to_dict()["graphs"] for item in graph["refusals"]]
    assert any("is no constant" in item["detail"] for item in refusals if item["backend"] == "tensorrt")


class _Odd(torch.nn.Module):
    """Two ops stand in the way, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(8, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = torch.digamma(self.head(value))
        return torch.digamma(self.head(value)) + torch.lgamma(value)


def test_a_required_backend_tells_all_that_is_in_the_way(bench, compiled) -> None:
    run = compiled(bench(), _Odd(), rules=[{"match": {}, "require": "tensorrt"}])
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="PlacementError") as caught:
        run.check(torch.randn(2, 8))
    text = str(caught.value)
    assert "tensorrt: unknown-op no rule for aten.digamma.default" in text
    assert "tensorrt: unknown-op no rule for aten.lgamma.default" in text
    assert "nodes %digamma, %digamma_1 (aten.digamma.default)" in text
    assert "eager: preference require tensorrt" in text


def test_a_whole_graph_that_tensorrt_takes_may_be_required(bench, compiled) -> None:
    run = compiled(bench(NEWEST), rules=[{"match": {}, "require": "tensorrt"}])
    run.check(torch.randn(2, 3, 8, 8))
    assert run.owners == {"tensorrt"} and len(run.regions) == 1
