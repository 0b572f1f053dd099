"""Trying ends with the weights, with the graph, where weights become inputs; letting go waits for nobody."""

from __future__ import annotations

import gc
import itertools
import threading
from typing import Any

import pytest
import torch
from stand_in_backends import settle

from mixbackend.compile.placeholder_entry import PlaceholderEntry
from mixbackend.compile.sized_graph import Row
from mixbackend.contracts import CompiledRegion, Region
from mixbackend.select.by_range import RangedDecisions
from mixbackend.select.live import duel
from mixbackend.select.live.arbiter import arbiter
from mixbackend.select.live.paired_decision import Outcome, Verdict

pytestmark = pytest.mark.usefixtures("worth_comparing", "tried_at_once")

X = torch.randn(8, 8)


def until(condition: Any, call: Any, most: int = 200) -> None:
    for _ in range(most):
        call()
        if condition():
            return
    raise AssertionError("it never came to that")


def trying(mixture: Any) -> str:
    return next((graph["selection"]["trying"] for graph in mixture.report().to_dict()["graphs"]), "")


@torch.no_grad()
def begun(mixture: Any) -> tuple[Any, torch.nn.Linear]:
    """A layer whose graph tries a challenger."""
    layer = torch.nn.Linear(8, 8)
    compiled = torch.compile(lambda layer, x: layer(x), backend=mixture, dynamic=False)
    until(lambda: trying(mixture), lambda: compiled(layer, X))
    return compiled, layer


def test_what_is_told_to_stop_keeps_what_runs(make_mixture, sleeper):
    quick = sleeper("quick", 0.0)
    mixture = make_mixture(sleeper("slow", 0.001), quick)
    compiled, layer = begun(mixture)
    mixture.stop_trying()
    with torch.no_grad():
        until(mixture.settled, lambda: torch.testing.assert_close(compiled(layer, X), layer(X)), most=5)
        compiled(layer, X)
    (graph,) = mixture.report().graphs
    assert {region.backend for region in graph.plan.regions} == {"slow"}
    assert graph.selection["trying"] == "", "nothing is compared any more"
    with torch.no_grad():
        compiled(torch.nn.Linear(8, 8), X)
    assert len(quick.compiled) == 1, "nothing is compiled to be tried"


def test_graphs_that_are_compiled_after_a_stop_are_tried(make_mixture, sleeper):
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    mixture.stop_trying()
    with torch.no_grad():
        compiled = torch.compile(lambda x: (x.exp() + 1.0).relu(), backend=mixture, dynamic=False)
        settle(mixture, lambda: compiled(X))
    (graph,) = mixture.report().graphs
    assert {region.backend for region in graph.plan.regions} == {"quick"}


def test_a_graph_whose_weights_are_gone_tries_nothing(make_mixture, sleeper):
    mixture = make_mixture(sleeper("slow", 0.001), sleeper("quick", 0.0))
    compiled, layer = begun(mixture)
    assert not mixture.settled()
    del layer
    gc.collect()
    assert mixture.settled()
    with torch.no_grad():
        other = torch.nn.Linear(8, 8)
        for _ in range(3):
            torch.testing.assert_close(compiled(other, X), other(X))


@pytest.mark.parametrize("kind", ["torch drops the graph", "weights are gone"])
def test_letting_go_waits_for_no_lock(make_mixture, sleeper, kind):
    """A collection of garbage may come in the middle of anything, in the thread that holds the lock."""
    mixture = make_mixture(sleeper("slow", 0.001), sleeper("quick", 0.0))
    _, layer = begun(mixture)
    (executable,) = mixture._graphs
    (tried,) = executable.rows[0].built
    del layer
    work = executable.release if kind == "torch drops the graph" else executable.drop_abandoned
    thread = threading.Thread(target=work, daemon=True)
    with arbiter()._lock, tried._live._lock, tried._live.selection._lock, tried._changing:
        thread.start()
        thread.join(5.0)
        assert not thread.is_alive()
    assert mixture.settled()


def test_who_was_let_go_of_keeps_nobody_waiting(make_mixture, sleeper):
    first = make_mixture(sleeper("slow", 0.001), sleeper("quick", 0.0))
    begun(first)
    (executable,) = first._graphs
    executable.release()
    torch._dynamo.reset()
    second = make_mixture(sleeper("slow", 0.001), sleeper("quick", 0.0))
    begun(second)


def test_weights_that_become_inputs_end_it(make_mixture, packer, sleeper):
    packer.bind_s = 0.02
    mixture = make_mixture(packer, sleeper("quick", 0.0))
    layer = torch.nn.Linear(8, 8)
    with torch.no_grad():
        compiled = torch.compile(layer, backend=mixture, dynamic=False)

        def call() -> None:
            torch.testing.assert_close(compiled(X), layer(X))
            layer.weight.mul_(0.9)

        until(lambda: any("live inputs" in event.detail for event in mixture.report().events), call, 40)
        settle(mixture, call, 40)


def test_weights_that_something_shared_for_a_while_are_not_taken_for_gone(make_mixture, sleeper):
    mixture = make_mixture(sleeper("slow", 0.001), sleeper("quick", 0.0))
    layer = torch.nn.Linear(8, 8)
    with torch.no_grad():
        compiled = torch.compile(lambda layer, x: layer(x), backend=mixture, dynamic=False)
        compiled(layer, X)
        kept = [layer.weight.detach(), layer.bias.detach()]
        until(lambda: trying(mixture), lambda: compiled(layer, X))
        del kept
        gc.collect()
        compiled(layer, X)
    (executable,) = mixture._graphs
    assert len(executable.rows) == 1 and trying(mixture)


def test_a_decision_that_cannot_be_remembered_costs_no_call(make_mixture, sleeper, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError("disk is full")

    monkeypatch.setattr(RangedDecisions, "keep_compared", broken)
    mixture = make_mixture(sleeper("slow", 0.01), sleeper("quick", 0.0))
    with torch.no_grad():
        compiled = torch.compile(torch.exp, backend=mixture, dynamic=False)
        settle(mixture, lambda: torch.testing.assert_close(compiled(X), X.exp()))
    (executable,) = mixture._graphs
    assert not isinstance(executable.rows[0].home, PlaceholderEntry)


def test_what_fails_in_the_call_that_it_won_before_is_repaired(make_mixture, sleeper, monkeypatch):
    """The rounds decide when the next call begins, which the winner runs."""

    class Fifth(sleeper):
        def compile(self, region: Region) -> CompiledRegion:
            compiled, calls = super().compile(region), itertools.count(1)

            def run(inputs: Any) -> Any:
                if next(calls) == 5:
                    raise RuntimeError("the fifth")
                return compiled.run(inputs)

            return CompiledRegion(run, strides="contiguous")

    faster = Outcome(Verdict.FASTER, 1, 0.5)
    monkeypatch.setattr(duel, "decide", lambda rounds: faster if rounds else Outcome(Verdict.OPEN))
    mixture = make_mixture(sleeper("slow", 0.0), Fifth("fifth", 0.0), on_failure="repair")
    with torch.no_grad():
        compiled = torch.compile(torch.exp, backend=mixture, dynamic=False)
        settle(mixture, lambda: torch.testing.assert_close(compiled(X), X.exp()))
    assert any(event.kind == "repair" for event in mixture.report().events)
    (graph,) = mixture.report().graphs
    assert {region.backend for region in graph.plan.regions} != {"fifth"}


def test_weights_edited_while_another_thread_follows_are_those_that_run(make_mixture, packer, sleeper, monkeypatch):
    """The better program for further weights is built in one call, and bound by another one, in another thread."""
    mixture = make_mixture(sleeper("slow", 0.01), packer, verify={"when": "off"})
    layers = [torch.nn.Linear(8, 8) for _ in range(2)]
    built, edited = threading.Event(), threading.Event()
    build = Row.build

    def slowly(row: Row, proposal: Any, on_trial: bool = False) -> Any:
        entry = build(row, proposal, on_trial)
        if not on_trial and row.graph_id.endswith("+1"):
            built.set()
            edited.wait(1.0)
        return entry

    with torch.no_grad():
        compiled = torch.compile(lambda layer, x: layer(x), backend=mixture, dynamic=False)
        compiled(layers[0], X), compiled(layers[1], X)
        settle(mixture, lambda: compiled(layers[0], X))
        monkeypatch.setattr(Row, "build", slowly)

        def follow() -> None:
            with torch.no_grad():
                compiled(layers[1], X)

        thread = threading.Thread(target=follow)
        thread.start()
        assert built.wait(20.0)
        layers[1].weight.mul_(2.0)
        compiled(layers[1], X)
        edited.set()
        thread.join()
        for _ in range(2):
            torch.testing.assert_close(compiled(layers[1], X), layers[1](X))
