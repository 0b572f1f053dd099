"""Gradients out of the memory of graphs: not copied while nobody keeps them, never written over while somebody does."""

from __future__ import annotations

import types

import pytest
import torch
from torch._inductor import cudagraph_trees

from mixbackend.execute.cuda_graphs import gradients
from mixbackend.execute.cuda_graphs.gradients import QUIET_STEPS, Giver, Guarded

from .graph_memory import Manager, Node


@pytest.fixture
def manager(monkeypatch):
    """The tree of this thread."""
    tree = Manager()
    monkeypatch.setattr(cudagraph_trees, "get_manager", lambda device, create_if_none_exists: tree)
    return tree


class Model:
    """Forward and backward of ``sum(weights * value)``, recorded."""

    def __init__(self, manager, weights=3):
        self.manager, self.weights, self.events, self.plain = manager, weights, [], []
        self.forward = self._part("forward", lambda value: [value * 2.0])
        self.backward = self._part("backward", self._gradients)

    def _gradients(self, saved):
        """And none for the value."""
        return [*(saved * (place + 1) for place in range(self.weights)), None]

    def _part(self, phase, function):
        def run(inputs):
            (value,) = inputs
            inputs.clear()
            return function(value)

        def plain(inputs):
            self.plain.append(phase)
            if phase == "backward":
                self.manager.set_to_running_backward()
            return run(inputs)

        recorded = self.manager.recorded(run, ["value"], 0, (), 0, phase)
        giver = Giver(self.events.append) if phase == "backward" else None
        return Guarded(recorded, plain, 0, giver, phase == "backward")

    def step(self, value):
        self.manager.generation += 1
        (saved,) = self.forward([value])
        return self.differentiate(saved.clone())

    def differentiate(self, saved):
        *results, nothing = self.backward([saved])
        assert nothing is None
        return results

    def right(self, value):
        return [value * 2.0 * (place + 1) for place in range(self.weights)]


def _check(results, expected):
    for result, right in zip(results, expected, strict=True):
        torch.testing.assert_close(result, right)


def test_nothing_is_copied_once_nobody_kept_gradients_for_a_while(manager, copies):
    model = Model(manager)
    for _ in range(QUIET_STEPS + 6):
        value = torch.randn(4)
        _check(model.step(value), model.right(value))
    assert copies == [3] * (QUIET_STEPS)
    assert (model.plain, model.events) == ([], [])


def test_gradients_that_are_kept_late_stay_what_they_were(manager, copies):
    model = Model(manager)
    kept, right = [], []
    for number in range(QUIET_STEPS + 8):
        value = torch.randn(4)
        results = model.step(value)
        if number >= QUIET_STEPS + 2:
            # One as it is, one as an alias: an optimiser's ``.grad`` shares the storage alone.
            kept.append([results[0], results[1].detach()])
            right.append(model.right(value)[:2])
        del results
    for results, expected in zip(kept, right, strict=True):
        _check(results, expected)
    assert len(model.events) == 1
    assert "copied" in model.events[0]
    assert model.plain == ["forward", "backward"] * 5


def test_graphs_are_back_when_kept_gradients_are_let_go_and_copies_stay(manager, copies):
    model = Model(manager)
    value = torch.randn(4)
    for _ in range(QUIET_STEPS + 2):
        model.step(value)
    kept = model.step(value)
    model.step(value)
    assert model.plain
    del kept
    model.plain.clear()
    copies.clear()
    for _ in range(5):
        model.step(value)
    assert (model.plain, copies) == ([], [3] * 5)


def test_added_up_over_calls_they_are_eagers(manager):
    model = Model(manager)
    for _ in range(8):
        total, expected = None, torch.zeros(4)
        for _ in range(4):
            value = torch.randn(4)
            result = model.step(value)[2]
            total = result.detach() if total is None else total.add_(result)
            del result
            expected += model.right(value)[2]
        torch.testing.assert_close(total, expected)


def test_added_up_from_late_on_they_are_eagers(manager):
    model = Model(manager)
    for _ in range(QUIET_STEPS + 3):
        model.step(torch.randn(4))
    values = torch.randn(6, 4)
    total = None
    for value in values:
        result = model.step(value)[0]
        total = result.detach() if total is None else total.add_(result)
        del result
    torch.testing.assert_close(total, values.sum(0) * 2.0)


def test_who_keeps_gradients_from_the_beginning_is_not_watched_for_long(manager, copies, monkeypatch):
    watched = []
    original = gradients.storages_of
    monkeypatch.setattr(gradients, "storages_of", lambda tensors: watched.append(1) or original(tensors))
    model = Model(manager)
    kept = [model.step(torch.randn(4)) for _ in range(50)]
    assert len(kept) == len(copies) == 50
    assert len(watched) < 40
    assert (model.plain, model.events) == ([], [])


def test_another_model_on_the_device_waits_for_them_too(manager):
    one, other = Model(manager), Model(manager, 2)
    for _ in range(QUIET_STEPS + 2):
        one.step(torch.randn(4))
        other.step(torch.randn(4))
    value = torch.randn(4)
    kept = one.step(value)
    _check(other.step(torch.ones(4)), other.right(torch.ones(4)))
    assert (one.plain, other.plain) == ([], ["forward", "backward"])
    _check(kept, one.right(value))


def test_a_backward_of_the_same_path_goes_on_while_gradients_of_another_are_held(manager):
    """As with a model of several graphs: torch's tree keeps to what lives in a path."""
    one, other = Model(manager), Model(manager)
    for _ in range(QUIET_STEPS + 3):
        manager.generation += 1
        saved = [part.forward([torch.ones(4)])[0].clone() for part in (one, other)]
        held = other.differentiate(saved[1])
        _check(one.differentiate(saved[0]), one.right(torch.ones(4)))
        del held
    assert (one.plain, other.plain) == ([], [])


def test_a_forward_that_was_run_again_within_a_backward_writes_over_nothing(manager):
    """As with checkpoints of compiled parts."""
    model = Model(manager)
    for _ in range(QUIET_STEPS + 2):
        model.step(torch.randn(4))
    value = torch.randn(4)
    kept = model.step(value)
    manager.generation += 1
    model.forward([torch.zeros(4)])
    _check(kept, model.right(value))
    assert model.plain == ["forward"]


def test_the_backward_of_a_forward_without_graphs_has_none_either(manager):
    model = Model(manager)
    for _ in range(QUIET_STEPS + 2):
        model.step(torch.randn(4))
    kept = model.step(torch.ones(4))
    manager.generation += 1
    (saved,) = model.forward([torch.ones(4)])
    del kept
    model.differentiate(saved)
    assert model.plain == ["forward", "backward"]


def test_code_of_others_in_the_tree_writes_over_nothing(manager):
    model = Model(manager)
    manager.ids_to_funcs["of inductor"] = types.SimpleNamespace(model=lambda inputs: "without graphs")
    for _ in range(QUIET_STEPS + 2):
        model.step(torch.randn(4))
    manager.generation += 1
    assert manager._run([], "of inductor") == "replayed"
    kept = model.step(torch.ones(4))
    manager.generation += 1
    assert manager._run([], "of inductor") == "without graphs"
    _check(kept, model.right(torch.ones(4)))
    del kept
    assert manager._run([], "of inductor") == "replayed"


def test_results_that_share_memory_or_are_expanded_are_copied(manager, copies):
    def backward(inputs):
        inputs.clear()
        base = torch.ones(4)
        return [base, base.view(2, 2), torch.zeros(1).expand(3), torch.full((2,), 5.0)]

    node_outputs = []

    def record(inputs):
        made = backward(inputs)
        if not node_outputs:
            node = Node(made, alone=[True, False, True, True])
            node_outputs.append(node)
        (node,) = node_outputs
        manager.current_node, manager.seen = node, manager.generation
        first, _, third, fourth = node.cached_tensor_outputs
        return [first, first.view(2, 2), third[:1].expand(3), fourth]

    manager.ids_to_funcs[0] = backward
    guarded = Guarded(record, backward, 0, Giver(lambda detail: None), True)
    for _ in range(QUIET_STEPS + 3):
        manager.generation += 1
        results = guarded([])
        memory = {item.data_ptr() for item in node_outputs[0].cached_tensor_outputs}
        own = [item.data_ptr() not in memory for item in results]
        del results
    assert own == [True, True, True, False]


def test_without_graphs_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(cudagraph_trees, "get_manager", lambda device, create_if_none_exists: None)
    guarded = Guarded(lambda inputs: [torch.ones(2)], lambda inputs: [], 0, Giver(lambda detail: None), True)
    assert torch.equal(guarded([])[0], torch.ones(2))


def test_gradients_live_while_a_path_goes_on(manager):
    """A graph that is recorded behind a backward is not given the memory of its gradients, copied or not."""
    model = Model(manager)
    for _ in range(QUIET_STEPS + 3):
        value = torch.randn(4)
        model.step(value)
        assert all(holder is None or holder() is not None for holder in manager.current_node.outputs_weakrefs)
        manager.generation += 1
        model.forward([value])
    assert not model.plain


def test_a_backward_that_may_be_run_again_does_without_graphs(manager, monkeypatch):
    model = Model(manager)
    for _ in range(QUIET_STEPS + 3):
        model.step(torch.randn(4))
    manager.generation += 1
    (saved,) = model.forward([torch.ones(4)])
    monkeypatch.setattr(gradients, "backward_keeps_graph", lambda: True)
    first = model.differentiate(saved.clone())
    monkeypatch.setattr(gradients, "backward_keeps_graph", lambda: False)
    _check(model.differentiate(saved.clone()), first)
    assert model.plain == ["backward", "backward"]
    model.step(torch.ones(4))
    assert len(model.plain) == 2
