"""Recordings are given up where weights lie elsewhere at every step, and only there."""

from __future__ import annotations

import pytest
import torch

from mixbackend.execute.cuda_graphs.moving_weights import MOST_MOVES, MovingWeights

from .exchanging_graph import Counting, Tree, recorded_layer

aten = torch.ops.aten


def _function(value, first, second):
    return aten.mul(aten.add(value, first), second)


@pytest.fixture
def tree(monkeypatch):
    stand_in = Tree()
    graph, events = recorded_layer(monkeypatch, stand_in, Counting(stand_in), _function, 2)
    return stand_in, graph, events


def _calls(graph, weights, count, moved=lambda weight, call: None):
    for call in range(count):
        for weight in weights:
            moved(weight, call)
        value = torch.randn(4)
        torch.testing.assert_close(graph([value, *weights])[0], (value + weights[0]) * weights[1])


def _weights():
    return [torch.nn.Parameter(torch.randn(4)) for _ in range(2)]


class Elsewhere:
    """Gives the storage of weights memory that it did not have before, as FSDP2 does."""

    def __init__(self):
        self._seen = set()
        self._fillers = []

    def __call__(self, weight, call):
        storage, values = weight.untyped_storage(), weight.detach().clone()
        self._seen.add(weight.data_ptr())
        while weight.data_ptr() in self._seen:
            storage.resize_(0)
            self._fillers.append(torch.empty(4))
            storage.resize_(values.nbytes)
        weight.copy_(values)


def test_weights_that_move_at_every_step_are_recorded_no_more(tree):
    stand_in, graph, events = tree
    with torch.no_grad():
        _calls(graph, _weights(), MOST_MOVES + 8, Elsewhere())
    # Without a graph, warming up, the first recording, and those after each move.
    assert stand_in.calls == 1 + 1 + MOST_MOVES
    told = [detail for _, detail in events]
    assert "r0 is recorded no more: weights are elsewhere at every step" in told
    assert told[-1] == "0 of 2 regions in 0 CUDA graphs; r0, r1 between them: weights are elsewhere at every step"


def test_weights_that_stay_are_replayed(tree):
    stand_in, graph, events = tree
    with torch.no_grad():
        _calls(graph, _weights(), 20)
    assert stand_in.calls == 19
    assert not any("no more" in detail for _, detail in events)


def test_weights_that_move_now_and_then_are_recorded_anew(tree):
    stand_in, graph, events = tree
    move, weights = Elsewhere(), _weights()
    with torch.no_grad():
        for _ in range(MOST_MOVES):
            _calls(graph, weights, 4)
            move(weights[0], 0)
    assert stand_in.calls == 4 * MOST_MOVES - 1
    assert not any("no more" in detail for _, detail in events)


def test_layers_that_share_a_graph_have_weights_of_their_own(tree):
    stand_in, graph, events = tree
    layers = [_weights() for _ in range(3 * MOST_MOVES)]
    with torch.no_grad():
        for _ in range(3):
            for weights in layers:
                _calls(graph, weights, 1)
    assert stand_in.calls == 9 * MOST_MOVES - 1
    assert not any("no more" in detail for _, detail in events)


def test_weights_in_one_storage_do_not_move(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    told = []
    moving = MovingWeights([0, 1], lambda: told.append(True))
    for _ in range(3 * MOST_MOVES):
        moving.around(list)([*torch.zeros(2, 4)])
    both = torch.zeros(2, 4)
    for _ in range(3 * MOST_MOVES):
        moving.around(list)([*both])
    assert not told


def test_nothing_is_looked_at_in_other_calls(monkeypatch):
    told = []
    moving, move = MovingWeights([0], lambda: told.append(True)), Elsewhere()
    (weight, _) = _weights()
    for capturing in (False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
        with torch.no_grad():
            for call in range(3 * MOST_MOVES):
                moving.around(list)([weight])
                move(weight, call)
        assert told == [True] * capturing
