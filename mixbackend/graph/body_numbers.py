"""Numbers that higher-order ops hand out are read off the graph's inputs instead.

Place: one of the passes for captured graphs. Input and output: an fx graph, changed in place.
A subgraph with symbols as sizes may return such a size, for the backward. What a region computes are tensors; the
number is known before the op runs, as the size of an input.
Example: ``getitem(invoke_subgraph, 3)`` with the value ``s0`` becomes the placeholder of ``s0``, or
``sym_size(x, 0)`` of a placeholder ``x`` of shape ``[s0, 8]``.
Non-goals: numbers that no input shows as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
import torch.fx

from mixbackend.contracts.torch_compat import is_higher_order, symbolic_expression


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether some higher-order op hands out a number."""
    return next(_numbers(graph_module.graph), None) is not None


def read_off_inputs(graph_module: torch.fx.GraphModule) -> int:
    """Replace numbers of higher-order ops by what inputs show; returns how many."""
    graph, changed = graph_module.graph, 0
    shown = _shown(graph)
    for node in list(_numbers(graph)):
        found = shown.get(str(symbolic_expression(node.meta["val"])))
        if found is None:
            continue
        source, axis = found
        with graph.inserting_before(node):
            number = source if axis is None else graph.call_function(torch.ops.aten.sym_size.int, (source, axis))
        number.meta.setdefault("val", node.meta["val"])
        node.replace_all_uses_with(number)
        graph.erase_node(node)
        changed += 1
    return changed


def _numbers(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    for node in graph.find_nodes(op="call_function", target=operator.getitem):
        source = node.args[0]
        handed_out = isinstance(source, torch.fx.Node) and is_higher_order(source.target)
        if handed_out and isinstance(node.meta.get("val"), torch.SymInt):
            yield node


def _shown(graph: torch.fx.Graph) -> dict[str, tuple[torch.fx.Node, int | None]]:
    """Where an expression can be read: a placeholder that is the number, or one and an axis of it."""
    found: dict[str, tuple[torch.fx.Node, int | None]] = {}
    placeholders = graph.find_nodes(op="placeholder")
    for node in placeholders:
        if isinstance(node.meta.get("val"), torch.SymInt):
            found.setdefault(str(symbolic_expression(node.meta["val"])), (node, None))
    for node in placeholders:
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                found.setdefault(str(symbolic_expression(size)), (node, axis))
    return found
