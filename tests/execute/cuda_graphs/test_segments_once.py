"""A segment with collectives takes part in each of them once for each call of the user, whatever fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as distributed
from ranks_here import as_rank
from two_ranks import hold_equal_to_eager

from .exchanging_graph import EXCHANGE, Counting, PlantedError, Tree, recorded_layer


@pytest.fixture(autouse=True)
def job(monkeypatch):
    """A rank of a job where nobody else is, and nothing is told."""
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "1")
    with as_rank(0, distributed.HashStore()):
        yield


def _wrong_at(when, call):
    def wrong(now, number):
        if (now, number) == (when, call):
            raise PlantedError(when)

    return wrong


def _held(graph, backend, calls):
    """Further calls: each takes part once, and is right."""
    for _ in range(calls):
        before, value = backend.exchanges, torch.randn(4)
        (result,) = graph([value])
        torch.testing.assert_close(result, torch.sigmoid(-value))
        assert backend.exchanges == before + 1


def test_each_call_takes_part_once(monkeypatch):
    tree = Tree()
    backend = Counting(tree)
    graph, events = recorded_layer(monkeypatch, tree, backend)
    _held(graph, backend, 6)
    assert tree.calls == 5
    assert [detail.split(";")[0] for _, detail in events] == ["4 of 4 regions in 1 CUDA graphs", "recorded"]


@pytest.mark.parametrize(("when", "call"), [("before", 1), ("before", 2), ("recording", 2), ("recorded", 2)])
def test_a_failure_before_it_ran_is_answered_by_running_it(monkeypatch, when, call):
    tree = Tree(_wrong_at(when, call))
    backend = Counting(tree)
    graph, events = recorded_layer(monkeypatch, tree, backend)
    _held(graph, backend, 6)
    assert tree.calls == call
    assert any("recording failed: PlantedError" in detail for _, detail in events)


def test_a_failure_while_it_is_recorded_anew_is_answered_as_well(monkeypatch):
    tree = Tree(_wrong_at("recording", 5))
    backend = Counting(tree)
    graph, _ = recorded_layer(monkeypatch, tree, backend)
    _held(graph, backend, 5)
    tree.again = True
    _held(graph, backend, 3)
    assert tree.calls == 5


def test_every_recording_ends_before_its_groups(monkeypatch):
    tree = Tree()
    backend = Counting(tree)
    graph, _ = recorded_layer(monkeypatch, tree, backend)
    _held(graph, backend, 2)
    assert tree.held == []
    _held(graph, backend, 3)
    assert tree.held == [{"0"}]
    tree.again = True
    _held(graph, backend, 2)
    assert tree.held == [{"0"}] * 2


def test_a_failure_after_it_ran_is_the_callers(monkeypatch):
    tree = Tree(_wrong_at("warmed up", 1))
    backend = Counting(tree)
    graph, events = recorded_layer(monkeypatch, tree, backend)
    _held(graph, backend, 1)
    with pytest.raises(PlantedError, match="warmed up"):
        graph([torch.randn(4)])
    assert backend.exchanges == 2
    assert any("recording failed: PlantedError" in detail for _, detail in events)
    _held(graph, backend, 3)


def test_the_region_that_cannot_be_recorded_is_left_out_from_then_on(monkeypatch):
    def wrong(op):
        if tree.capturing and op == "aten.sigmoid.default":
            raise PlantedError("operation not permitted when stream is capturing")

    tree = Tree()
    backend = Counting(tree, wrong)
    graph, events = recorded_layer(monkeypatch, tree, backend)
    _held(graph, backend, 7)
    assert [detail.split(";")[0] for _, detail in events if "regions in" in detail] == [
        "4 of 4 regions in 1 CUDA graphs",
        "3 of 4 regions in 1 CUDA graphs",
    ]


def test_a_collective_that_cannot_be_recorded_is_left_out_with_its_wait(monkeypatch):
    def wrong(op):
        if tree.capturing and op == EXCHANGE:
            raise PlantedError("no")

    tree = Tree()
    backend = Counting(tree, wrong)
    graph, events = recorded_layer(monkeypatch, tree, backend)
    _held(graph, backend, 7)
    described = [detail for _, detail in events if "regions in" in detail]
    assert described[-1].startswith("2 of 4 regions in 2 CUDA graphs; r1 between them: recording failed")
    assert "r2 between them: another part of its exchange among ranks is elsewhere" in described[-1]


@pytest.mark.parametrize("chosen", ["1", None])
def test_recordings_wait_for_no_rank_unless_the_user_says_so(monkeypatch, chosen):
    if chosen is None:
        monkeypatch.delenv("NCCL_GRAPH_REGISTER")
    tree = Tree()
    backend = Counting(tree)
    graph, _ = recorded_layer(monkeypatch, tree, backend)
    _held(graph, backend, 2)
    assert os.environ["NCCL_GRAPH_REGISTER"] == (chosen or "0")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["recording", "recorded anew", "before", "never recorded"])
def test_ranks_of_which_one_cannot_record_go_on(kind):
    hold_equal_to_eager(Path(__file__).with_name("exchanging_worker.py"), kind)
