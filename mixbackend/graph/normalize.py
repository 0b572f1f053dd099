"""Normalise: the few rewrites that every captured graph gets before it is described.

Place: between capture and describe. Input and output: the fx graph, changed in place (it is ours alone).
Invariants: values, shapes and strides as traced stay what they were, and so do the types of what eager returns.

``view`` becomes ``reshape``: backends may hand over tensors whose strides are not the traced ones, and a ``view`` that
eager could take would then fail. So does ``as_strided`` that only restates strides (``redundant_as_strided``). Tensors
of one element that tracing lifted out of the code become numbers again (``lifted_scalars``). Equal ops become one
(``cse``). Where torch states other types than eager's kernels return, theirs are written down (``result_types``).
"""

from __future__ import annotations

import torch
import torch.fx

from mixbackend.graph.cse import merge_common_ops
from mixbackend.graph.lifted_scalars import write_lifted_numbers
from mixbackend.graph.redundant_as_strided import reshape_restated_strides
from mixbackend.graph.result_types import state_result_types

_RESHAPED = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def normalize(graph_module: torch.fx.GraphModule) -> None:
    """Rewrite a captured graph in place."""
    state_result_types(graph_module)
    for target in _RESHAPED:
        for node in graph_module.graph.find_nodes(op="call_function", target=target):
            node.target = torch.ops.aten.reshape.default
    reshape_restated_strides(graph_module)
    write_lifted_numbers(graph_module)
    merge_common_ops(graph_module)
    graph_module.recompile()
