"""Norm dimensions: dimensions of a vector norm count from the front, and its result is stated with the right shape.

Place: a pass of captured graphs, and of joint graphs before they are split (``passes``).
Input and output: the fx graph, changed in place.
torch up to 2.11 states the norm of dimensions of size 1 with these dimensions still there where they are counted from
the end; its decomposition computes that, too. Kernels drop them.
Invariants: values stay what eager's kernels give; what is computed of a shape that was stated wrongly is stated anew.
Non-goals: numbers in the graph that tracing took from the wrong shape.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.describe_op import as_tuple
from mixbackend.contracts.torch_compat import is_fake, is_mutating, is_operator, rerun_fake

_NORM = torch.ops.aten.linalg_vector_norm.default


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a norm counts dimensions from the end."""
    return any(_from_the_end(node) for node in graph_module.graph.find_nodes(op="call_function", target=_NORM))


def count_from_the_front(graph_module: torch.fx.GraphModule) -> int:
    """Rewrite the norms in place; returns how many."""
    counted = 0
    restated: set[torch.fx.Node] = set()
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or "val" not in node.meta:
            continue
        if node.target is _NORM and _from_the_end(node):
            value, dims = _normed(node)
            node.update_arg(2, [dim % value.dim() for dim in dims])
            counted += 1
        elif restated.isdisjoint(node.all_input_nodes):
            continue
        if _restate(node):
            restated.add(node)
    return counted


def _from_the_end(node: torch.fx.Node) -> bool:
    value, dims = _normed(node)
    if not isinstance(dims, (tuple, list)) or not is_fake(value) or value.dim() == 0:
        return False
    return any(isinstance(dim, int) and dim < 0 for dim in dims)


def _normed(node: torch.fx.Node) -> tuple[Any, Any]:
    """The fake tensor that the norm is taken of, and the dimensions."""
    dims = node.args[2] if len(node.args) > 2 else None
    return node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else None, dims


def _restate(node: torch.fx.Node) -> bool:
    """State a node's result as its inputs are stated now; returns whether its rank is another one."""
    if node.target is not operator.getitem and (not is_operator(node.target) or is_mutating(node.target)):
        return False
    given: Any = torch.fx.node.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    arguments, keywords = given
    if node.target is operator.getitem:
        true = arguments[0][arguments[1]]
    else:
        try:
            true = rerun_fake(node.target, arguments, keywords)
        except Exception:
            # Tracing took numbers from the wrong shape: no statement is right.
            return False
    if _ranks(true) == _ranks(node.meta["val"]):
        return False
    node.meta["val"] = true
    return True


def _ranks(value: Any) -> list[int | None]:
    return [item.dim() if isinstance(item, torch.Tensor) else None for item in as_tuple(value)]
