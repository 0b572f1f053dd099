"""Views as reshapes: ``view`` becomes ``reshape``.

Place: a pass of ``passes.CAPTURED``. Input and output: the fx graph, changed in place.
Backends may hand over tensors with other strides than the traced ones, and a ``view`` that eager could take would then
fail.
Invariants: values, shapes and strides as traced stay what they were.
"""

from __future__ import annotations

import torch
import torch.fx

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether there is a ``view``."""
    return any(graph_module.graph.find_nodes(op="call_function", target=target) for target in _VIEWS)


def reshape_views(graph_module: torch.fx.GraphModule) -> int:
    """Rewrite the ops in place; returns how many."""
    found = [node for target in _VIEWS for node in graph_module.graph.find_nodes(op="call_function", target=target)]
    for node in found:
        node.target = torch.ops.aten.reshape.default
    return len(found)
