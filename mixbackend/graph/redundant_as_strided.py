"""Strides that are stated once more: ``as_strided`` that addresses its input's own elements is a reshape.

Place: a pass of ``passes.CAPTURED``. Input and output: the fx graph, changed in place.
torch writes ``as_strided`` after a pooling to one pixel of a channels-last image, only to give axes of length one the
strides of that layout. As it stands, the op reads memory rather than elements: hardly a backend takes it, and the
input's strides must be as traced. Where nothing but axes of length one differs, its elements are its input's.
Invariants: values, shapes and strides as traced stay what they were; the result is still a view of the input.
Non-goals: windows, diagonals and other views that ``as_strided`` can say; sizes that are equal only by a guard.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from mixbackend.contracts.describe_op import size_of

_AS_STRIDED = torch.ops.aten.as_strided.default


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether there is an ``as_strided``."""
    return bool(graph_module.graph.find_nodes(op="call_function", target=_AS_STRIDED))


def reshape_restated_strides(graph_module: torch.fx.GraphModule) -> int:
    """Rewrite the ops in place; returns how many."""
    found = [node for node in graph_module.graph.find_nodes(op="call_function", target=_AS_STRIDED) if _restates(node)]
    for node in found:
        node.target, node.args, node.kwargs = torch.ops.aten.reshape.default, node.args[:2], {}
    return len(found)


def _restates(node: torch.fx.Node) -> bool:
    source, sizes, strides = (_values(argument) for argument in node.args[:3])
    offset = _values(node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset"))
    if not isinstance(source, torch.Tensor) or source.layout is not torch.strided:
        return False
    if offset is not None and size_of(offset) != size_of(source.storage_offset()):
        return False
    shape = tuple(map(size_of, source.shape))
    steps = zip(shape, map(size_of, strides), map(size_of, source.stride()), strict=False)
    return tuple(map(size_of, sizes)) == shape and all(stated == own for size, stated, own in steps if size != 1)


def _values(argument: Any) -> Any:
    return torch.fx.node.map_arg(argument, lambda node: node.meta.get("val"))
