"""Result types: a captured graph states the types that eager's kernels return, also where torch's fake tensors err.

Place: a pass of captured graphs, and of joint graphs before they are split (``passes``).
Input and output: the fx graph, whose ``meta["val"]`` are replaced where they are wrong. Which operators err is
known in ``contracts.torch_compat``.
Without this, a region that returns a statistic in the stated type fails against eager, and one that reads a statistic
which eager saved takes its bytes for another type.
Invariants: shapes, strides and devices stay as traced; a graph that states the truth is left as it is.
Non-goals: ops that write: their result is what they write into.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.describe_op import as_tuple
from mixbackend.contracts.torch_compat import (
    MISSTATED,
    eager_types,
    is_fake,
    is_mutating,
    is_operator,
    rerun_fake,
    retyped,
)

Node = torch.fx.Node


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether there is an operator that torch may state wrongly."""
    return any(node.op == "call_function" and node.target in MISSTATED for node in graph_module.graph.nodes)


def state_result_types(graph_module: torch.fx.GraphModule) -> int:
    """Correct the stated types in place; returns of how many nodes."""
    corrected: set[Node] = set()
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or "val" not in node.meta:
            continue
        stated = node.meta["val"]
        true = retyped(stated, _types(node, corrected)) if _is_plain(stated) else stated
        if true is not stated:
            node.meta["val"] = true
            corrected.add(node)
    return len(corrected)


def _is_plain(value: Any) -> bool:
    """Whether all tensors of a result are fake, and lie in memory as shape and strides say."""
    tensors = [item for item in as_tuple(value) if isinstance(item, torch.Tensor)]
    return bool(tensors) and all(is_fake(item) and item.layout is torch.strided for item in tensors)


def _types(node: Node, corrected: set[Node]) -> dict[int, torch.dtype]:
    """Types of a node's results, by number, as far as they may differ from those that are stated."""
    follows = not corrected.isdisjoint(node.all_input_nodes)
    if not follows and node.target not in MISSTATED:
        return {}
    if node.target is operator.getitem:
        return _types_of(_value(node.args[0])[node.args[1]])
    if not is_operator(node.target) or is_mutating(node.target):
        return {}
    arguments, keywords = torch.fx.node.map_arg((node.args, node.kwargs), _value)  # type: ignore[misc]
    if follows:
        return _types_of(rerun_fake(node.target, arguments, keywords))
    return eager_types(node.target, arguments, keywords)


def _types_of(value: Any) -> dict[int, torch.dtype]:
    return {place: item.dtype for place, item in enumerate(as_tuple(value)) if isinstance(item, torch.Tensor)}


def _value(node: Any) -> Any:
    return node.meta.get("val")
