"""Factories: memory that is made like another tensor, but holds nothing of it, is made of no tensor.

Place: a pass of ``passes.constant_passes``, before ``split``, on inference graphs with constant weights.
Input and output: the fx graph, changed in place.
``x.new_zeros(...)`` and ``torch.ones_like(x)`` take from ``x`` its type and device, which are known: so a mask that is
made this way in every call depends on nothing, and ``split`` has it computed once.
Invariants: shapes, strides, types, devices and values as traced; what has a symbolic size stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

aten = torch.ops.aten

_FILLED: dict[Any, Callable[[torch.fx.Node], Any]] = {
    aten.new_zeros.default: lambda node: 0,
    aten.new_ones.default: lambda node: 1,
    aten.new_full.default: lambda node: node.args[2],
    aten.zeros_like.default: lambda node: 0,
    aten.ones_like.default: lambda node: 1,
    aten.full_like.default: lambda node: node.args[1],
}
"""What these fill their memory with."""


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether memory is made like another tensor."""
    return any(graph_module.graph.find_nodes(op="call_function", target=target) for target in _FILLED)


def free_factories(graph_module: torch.fx.GraphModule) -> int:
    """Let factories take numbers instead of a tensor that they copied the form of.

    Returns:
        How many did.
    """
    graph, freed = graph_module.graph, 0
    for target, filling in _FILLED.items():
        for node in graph.find_nodes(op="call_function", target=target):
            value, number = node.meta["val"], filling(node)
            if not _is_plain(value) or not isinstance(number, (bool, int, float)):
                continue
            node.target = aten.full.default
            node.args = (list(value.shape), number)
            node.kwargs = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
            freed += 1
    if freed:
        graph.eliminate_dead_code()
        graph_module.recompile()
    return freed


def _is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is what ``full`` makes: of known sizes, its elements one after the other."""
    sizes = (*value.shape, *value.stride())
    return value.layout is torch.strided and all(isinstance(size, int) for size in sizes) and value.is_contiguous()
