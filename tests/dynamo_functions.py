"""Backends of Dynamo, as packages write them: found by import, one per way to behave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx


def as_it_is(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Runs the graph as it came."""
    return graph_module.forward


def traced_again(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Traces the graph with the examples, as compilers with an own AOTAutograd do."""
    return make_fx(graph_module)(*example_inputs).forward


def scripted(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Needs real examples."""
    assert all(type(value) is torch.Tensor for value in example_inputs)
    return torch.jit.trace(graph_module, example_inputs, check_trace=False)


def does_not_compile(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Raises at once."""
    raise NotImplementedError("no license")


def does_not_run(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Raises when it is called."""

    def run(*inputs: torch.Tensor) -> Any:
        raise RuntimeError("the device is gone")

    return run


def is_wrong(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Off by a hundredth."""
    return lambda *inputs: tuple(value * 1.01 for value in graph_module(*inputs))


def returns_a_tensor(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Not a tuple."""
    return lambda *inputs: graph_module(*inputs)[0]


def returns_nothing(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> None:
    """Not something to call."""
