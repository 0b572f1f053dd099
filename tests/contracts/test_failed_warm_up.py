"""Torch's tree of CUDA graphs after a function could not be warmed up: others go on with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import cudagraph_trees as trees

from mixbackend.contracts import torch_compat


def warm_up_node(stack_traces: list[None]) -> Any:
    """As torch makes it before a function runs for the first time; one stack trace for each result."""
    wrapped = SimpleNamespace(id=0, constants=())
    return trees.CUDAWarmupNode(wrapped, None, (0, 0), None, 0, stack_traces, None, True, None)


def test_the_next_function_begins_a_path(monkeypatch: Any, caplog: Any) -> None:
    """There torch pairs results with stack traces of the function before; one that failed has none."""
    manager = SimpleNamespace(current_node=None, id_to_mode={0: trees.CompilationMode.INFERENCE})
    manager.disable_invalidate_aliases = False
    manager.format_dealloc_msg = trees.CUDAGraphTreeManager.format_dealloc_msg

    def fail(function: Any, inputs: Any, *_: Any, stack_traces: Any, **__: Any) -> None:
        manager.current_node = warm_up_node(stack_traces)
        function(inputs)

    def broken(inputs: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(trees, "cudagraphify", fail)
    monkeypatch.setattr(trees, "get_manager", lambda device, create_if_none_exists: manager)
    run = torch_compat.cuda_graph_recorded(broken, ["a"], 3, [], 0, "inference")
    with pytest.raises(RuntimeError, match="no memory"):
        run([torch.ones(1)])
    trees.CUDAGraphTreeManager.dealloc_current_path_weakrefs(manager)
    assert "length" not in caplog.text


@pytest.mark.parametrize("given", [[1.0], []])
def test_what_others_left_unfinished_is_finished_before_ours_begins(monkeypatch: Any, given: list[float]) -> None:
    """Functions of another compiler fail without a word to us, and torch then fails in the function after them."""
    node = warm_up_node([None] * 3)
    manager = SimpleNamespace(current_node=node)

    def begin(function: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        assert len(node.tensor_weakrefs) == len(node.stack_traces)
        return (function, function(inputs))

    def double(inputs: list[Any]) -> list[Any]:
        (value,) = inputs
        inputs.clear()
        return [2.0 * value]

    monkeypatch.setattr(trees, "cudagraphify", begin)
    monkeypatch.setattr(trees, "get_manager", lambda device, create_if_none_exists: manager)
    run = torch_compat.cuda_graph_recorded(double, ["a"], 1, [], 0, "inference")
    if given:
        assert run([torch.tensor(given)]) == [torch.tensor([2.0])]
        assert run([torch.tensor(given)]) == [torch.tensor([2.0])]
    else:
        with pytest.raises(AssertionError):
            run([])  # it cannot be told whether ours began


@pytest.mark.parametrize(("emptied", "most"), [(True, 1), (False, 2)])
def test_an_assertion_of_ours_is_raised(monkeypatch: Any, emptied: bool, most: int) -> None:
    """At once; where it cannot be told from one of torch's, after one further try."""
    manager, calls = SimpleNamespace(current_node=None), list[int]()

    def begin(function: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        manager.current_node = warm_up_node([None])
        return (function, function(inputs))

    def broken(inputs: list[Any]) -> None:
        calls.append(1)
        if emptied:
            inputs.clear()
        raise AssertionError("ours")

    monkeypatch.setattr(trees, "cudagraphify", begin)
    monkeypatch.setattr(trees, "get_manager", lambda device, create_if_none_exists: manager)
    run = torch_compat.cuda_graph_recorded(broken, ["a"], 1, [], 0, "inference")
    with pytest.raises(AssertionError, match="ours"):
        run([torch.ones(1)])
    assert len(calls) == most
