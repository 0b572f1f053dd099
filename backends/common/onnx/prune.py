"""Prune: nodes and literals that no output of a model depends on are left out.

Place: last step of ``lower_region``. Emitters write a value in its plain form (a transposed weight), and those that
know a better one read what it was made of; what is then unread is removed.
Input and output: a model, changed in place.
Invariants: order is kept; graph inputs stay, read or not, for they are the boundary of the region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


def prune(model: onnx.ModelProto) -> None:
    """Keep what is needed for the outputs; nodes are in topological order."""
    graph = model.graph
    needed = {item.name for item in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    _replace(graph.node, kept[::-1])
    _replace(graph.initializer, tensors)


def _replace(field: Any, items: list[Any]) -> None:
    if len(items) == len(field):
        return
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)
