"""Challengers are loaded while calls go on: weights that change meanwhile, models that go away, what calls see."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stand_in_backends
import torch
from stand_in_backends import LoadedInParts, Packer, settle, try_at_once

from mixbackend.compile import tried_entry
from mixbackend.compile.mixture import Mixture
from mixbackend.compile.tried_entry import TriedEntry
from mixbackend.configuration import load_config
from mixbackend.contracts import CompiledRegion, Region, Traits
from mixbackend.cost.costs import SessionCosts
from mixbackend.host.loading import BesideCalls, Steps
from mixbackend.plan.choice import Choice
from mixbackend.select.live import allowance, call_meter, live_calls, processor_challengers, selection
from mixbackend.select.live.preparation import Contender

X = torch.randn(8, 8)


class PackingSleeper(Packer):
    """Packs constants, and takes a while to run."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__()
        self.name, self.seconds = name, seconds  # type: ignore[misc]

    def traits(self) -> Traits:
        return Traits(weights="refit", thread_pool=self.name)

    def compile(self, region: Region) -> CompiledRegion:
        compiled = super().compile(region)
        bind = compiled.bind
        assert bind is not None

        def binding(constants: Sequence[torch.Tensor | None]) -> Any:
            bound = bind(constants)

            def run(inputs: Sequence[Any]) -> Any:
                stand_in_backends.sleep(self.seconds)
                return bound.run(inputs)

            return replace(bound, run=run)

        return CompiledRegion(compiled.run, bind=binding, strides="contiguous")


@pytest.mark.usefixtures("worth_comparing", "tried_at_once")
@pytest.mark.parametrize("part", range(1, 7))
def test_weights_that_change_in_the_middle_of_a_load_are_seen(make_mixture, monkeypatch, part):
    monkeypatch.setattr(live_calls, "BesideCalls", LoadedInParts)
    monkeypatch.setattr(LoadedInParts, "latest", None)
    linear, edited = torch.nn.Linear(8, 8), []
    mixture = make_mixture(PackingSleeper("slow", 0.01), PackingSleeper("quick", 0.0))
    with torch.no_grad():
        compiled = torch.compile(linear, backend=mixture, dynamic=False)

        def call() -> None:
            torch.testing.assert_close(compiled(X), linear(X))
            if LoadedInParts.latest is not None and LoadedInParts.latest.parts == part and not edited:
                edited.append(part)
                linear.weight.mul_(3.0)

        settle(mixture, call)
        call()
    report = mixture.report()
    assert edited == [part] and LoadedInParts.latest.parts > part
    assert [{region.backend for region in graph.plan.regions} for graph in report.graphs] == [{"quick"}]
    assert {event.kind for event in report.events} <= {"tuning", "weights_rebuilt", "threads"}, "nothing was wrong"


@pytest.mark.usefixtures("worth_comparing", "tried_at_once")
def test_what_cannot_be_bound_to_weights_that_changed_meanwhile_is_out(make_mixture, monkeypatch):
    monkeypatch.setattr(live_calls, "BesideCalls", LoadedInParts)
    linear, quick = torch.nn.Linear(8, 8), PackingSleeper("quick", 0.0)
    mixture = make_mixture(PackingSleeper("slow", 0.01), quick)
    with torch.no_grad():
        compiled = torch.compile(linear, backend=mixture, dynamic=False)

        def call() -> None:
            torch.testing.assert_close(compiled(X), linear(X))
            if quick.binds and quick.bind_error is None:
                linear.weight.mul_(3.0)
                quick.bind_error = RuntimeError("no memory")

        settle(mixture, call)
        call()
    (graph,) = mixture.report().graphs
    assert quick.bind_error is not None and {region.backend for region in graph.plan.regions} == {"slow"}


@pytest.mark.usefixtures("worth_comparing", "tried_at_once")
def test_of_a_model_that_goes_away_in_the_middle_of_a_load_nothing_is_kept(make_mixture, sleeper, monkeypatch):
    monkeypatch.setattr(live_calls, "BesideCalls", LoadedInParts)
    monkeypatch.setattr(LoadedInParts, "latest", None)
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    with torch.no_grad():
        compiled = torch.compile(lambda x: (x.exp() + 1.0).relu(), backend=mixture, dynamic=False)
        while LoadedInParts.latest is None or LoadedInParts.latest.parts < 2:
            compiled(X)
    mixture.reset()
    torch._dynamo.reset()
    del compiled
    gc.collect()
    loading = LoadedInParts.latest
    while not loading.done:
        loading.between_calls()
    with pytest.raises(tried_entry.UnbuiltError, match="nobody calls the graph any more"):
        loading.take()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(256)
        self.wide, self.narrow = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))


@pytest.fixture
def calls_alone() -> Iterator[None]:
    """Calls take their own time: a caller that waits for a thread of torch's pool spins, and collections of the tests'
    garbage come in whichever call."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    torch.set_num_threads(before)


@pytest.mark.usefixtures("calls_alone")
def test_loading_takes_no_time_of_the_thread_that_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of the processor, by thread: what else runs says nothing. Loading takes several calls' time."""
    try_at_once(monkeypatch)
    monkeypatch.setattr(allowance, "LEAST_CALLS", 20)  # the plan's own checks are over by then
    loaded: list[BesideCalls[Any]] = []
    threads: set[int] = set()

    class Kept(BesideCalls[Any]):
        def __init__(self, steps: Any) -> None:
            super().__init__(steps)
            loaded.append(self)

    load = TriedEntry.load

    def loading(self: TriedEntry, choice: Choice) -> Steps[Contender]:
        contender = yield from load(self, choice)
        threads.add(threading.get_ident())
        return contender

    monkeypatch.setattr(live_calls, "BesideCalls", Kept)
    monkeypatch.setattr(call_meter, "LOOK_EVERY_S", 1e-3)
    monkeypatch.setattr(TriedEntry, "load", loading)
    monkeypatch.setattr(tried_entry, "clock", time.perf_counter)
    monkeypatch.setattr(processor_challengers, "LEAST_S", 0.0)
    monkeypatch.setattr(selection, "worth_trying", lambda challengers, bar_s: tuple(challengers))
    monkeypatch.setattr(SessionCosts, "comparable", lambda self, graph: {"codegen", "onednn"})
    monkeypatch.setenv("MIXBACKEND_BACKGROUND", "off")
    config = {"backends": ["codegen", "onednn", "eager"], "cache": {"dir": str(tmp_path / "cache")}}
    torch._dynamo.reset()
    mixture = Mixture(load_config(config))
    model, x = torch.nn.Sequential(*[Block() for _ in range(8)]).eval(), torch.randn(64, 256)
    took: list[tuple[float, bool]] = []
    with torch.no_grad():
        compiled = torch.compile(model, backend=mixture, dynamic=False)
        compiled(x)
        for _ in range(20_000):
            before, begin = [item for item in loaded if not item.done], time.thread_time()
            compiled(x)
            seconds = time.thread_time() - begin
            if mixture.settled():
                break
            took.append((seconds, bool(before) or not all(item.done for item in loaded)))
    happened = [graph["selection"]["happened"] for graph in mixture.report().to_dict()["graphs"]]
    mixture.reset()
    torch._dynamo.reset()
    assert threads, happened
    assert threading.get_ident() not in threads
    median = statistics.median(seconds for seconds, _ in took)
    beside = [seconds for seconds, is_beside in took if is_beside]
    assert max(beside) < 3.0 * median + 0.005 < max(item.took_s for item in loaded)
