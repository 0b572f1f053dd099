"""Trying ends with the weights, with the graph, where weights become inputs; letting go waits for nobody."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from stand_in_backends import settle

from mixbackend.select.live.arbiter import arbiter

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
