"""Result types: a captured graph states the types and strides that eager's kernels give, also where fake tensors err.

Place: a pass of captured graphs, and of joint graphs before they are split (``passes``).
Input and output: the fx graph; its ``meta["val"]`` are replaced where they are wrong. Which operators err is known in
``contracts.torch_compat``.
Without this, a region that returns a statistic in the stated type fails against eager, and one that reads a statistic
which eager saved takes its bytes for another type; a result is laid out as is stated, and eager's otherwise.
Invariants: shapes and devices stay as traced; a graph that states the truth is left as it is.
Non-goals: ops that write: their result is what they write into.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import TensorMeta
from mixbackend.contracts.describe_op import as_tuple, value_meta
from mixbackend.contracts.torch_compat import (
    MISLAID,
    MISSTATED,
    eager_types,
    is_fake,
    is_mutating,
    is_operator,
    rerun_fake,
    restated,
)

aten = torch.ops.aten

Node = torch.fx.Node


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether there is an operator that torch may state wrongly."""
    return any(
        node.op == "call_function" and (node.target in MISSTATED or _may_be_mislaid(node))
        for node in graph_module.graph.nodes
    )


def state_result_types(graph_module: torch.fx.GraphModule) -> int:
    """Correct the stated types and strides in place; returns of how many nodes."""
    corrected: set[Node] = set()
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or "val" not in node.meta:
            continue
        stated = node.meta["val"]
        true = restated(stated, *_forms(node, corrected)) if _is_plain(stated) else stated
        if true is not stated:
            node.meta["val"] = true
            corrected.add(node)
    return len(corrected)


def _is_plain(value: Any) -> bool:
    """Whether all tensors of a result are fake, and lie in memory as shape and strides say."""
    tensors = [item for item in as_tuple(value) if isinstance(item, torch.Tensor)]
    return bool(tensors) and all(is_fake(item) and item.layout is torch.strided for item in tensors)


def _may_be_mislaid(node: Node) -> bool:
    """Whether it matters that torch lays out an operator's results wrongly: where all that it reads lies row by row, no
    kernel does otherwise."""
    if node.target not in MISLAID:
        return False
    metas = [value_meta(_value(source)) for source in node.all_input_nodes]
    return not all(meta.contiguous() for meta in metas if isinstance(meta, TensorMeta))


_Types = dict[int, torch.dtype]
_Strides = dict[int, tuple[Any, ...]]


def _forms(node: Node, corrected: set[Node]) -> tuple[_Types, _Strides]:
    """Types and strides of a node's results, by number, as far as they may differ from those that are stated."""
    follows = not corrected.isdisjoint(node.all_input_nodes)
    mislaid = _may_be_mislaid(node)
    if not follows and not mislaid and node.target not in MISSTATED:
        return {}, {}
    if node.target is operator.getitem:
        return _forms_of(_value(node.args[0])[node.args[1]])
    if not is_operator(node.target) or is_mutating(node.target):
        return {}, {}
    arguments, keywords = torch.fx.node.map_arg((node.args, node.kwargs), _value)  # type: ignore[misc]
    if follows or mislaid:
        # What was a view of the stated strides need not be one of the true ones.
        target = aten.reshape.default if node.target is aten.view.default else node.target
        return _forms_of(rerun_fake(target, arguments, keywords))
    return eager_types(node.target, arguments, keywords), {}


def _forms_of(value: Any) -> tuple[_Types, _Strides]:
    tensors = {place: item for place, item in enumerate(as_tuple(value)) if isinstance(item, torch.Tensor)}
    types = {place: item.dtype for place, item in tensors.items()}
    return types, {place: tuple(item.stride()) for place, item in tensors.items()}


def _value(node: Any) -> Any:
    return node.meta.get("val")
