"""Entries that are recorded for a trial, and for good afterwards."""

from __future__ import annotations

import pytest
import torch

from mixbackend.execute import cuda_graphs
from mixbackend.execute.cuda_graphs import recorded


@pytest.fixture
def made(monkeypatch):
    """What was recorded: positions of arguments that are the same memory at every call."""
    found = []

    def record(function, names, results, static, *_):
        found.append(tuple(static))
        return function

    monkeypatch.setattr(recorded, "cuda_graph_recorded", record)
    monkeypatch.setattr(recorded, "obstacle_of", lambda *_: "")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(cuda_graphs, "device_of", lambda graph: 0)
    return found


def test_a_trial_copies_nothing_and_tells_nothing(make_mixture, loopback, made):
    mixture = make_mixture(loopback, select="off", weights="live")
    mixture.environment_for = lambda mode, options: mixture.environment(mixture.config, True)
    weight, value = torch.nn.Parameter(torch.randn(3)), torch.randn(3)

    def told():
        return [event.detail for event in mixture.report().events if event.kind == "cuda_graphs"]

    layer = torch.nn.Module()
    layer.weight = weight
    layer.forward = lambda x: (x * layer.weight).relu()
    with torch.no_grad():
        compiled = torch.compile(layer, backend=mixture, dynamic=False)

        def call():
            torch.testing.assert_close(compiled(value), layer.forward(value))

        call()
        (graph,) = [row.home for executable in mixture._graphs for row in executable.rows]
        before = (len(made), told())
        graph.rehearse(True)
        call()
        call()
        trial = made[before[0] :]
        assert [len(static) for static in trial] == [2]
        assert told() == before[1]
        graph.rehearse(False)
        call()
        call()
    (for_good,) = made[before[0] + 1 :]
    assert len(for_good) == 1
    assert len(told()) > len(before[1])
