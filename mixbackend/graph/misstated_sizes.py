"""Misstated sizes: operators with results of sizes that depend on values, traced as if these were known.

Place: asked by ``compile.driver`` before a graph is placed. Input: a captured graph. Output: whether eager is to run
it. Some versions of torch trace such an operator (``aten._unique`` in the gradient of ``index_fill``) with the largest
size it may have. What is compiled for that size reads behind the end of what the operator returns.
"""

from __future__ import annotations

import torch
import torch.fx

from mixbackend.contracts.describe_op import as_tuple

_SIZED_BY_VALUES = frozenset(
    {
        torch.ops.aten._unique.default,
        torch.ops.aten._unique2.default,
        torch.ops.aten.unique_dim.default,
        torch.ops.aten.unique_consecutive.default,
        torch.ops.aten.unique_dim_consecutive.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.bincount.default,
    }
)


def has_misstated_sizes(module: torch.fx.GraphModule) -> bool:
    """Whether a result of a size that depends on values is stated with a known one."""
    nodes = (node for node in module.graph.nodes if node.op == "call_function" and node.target in _SIZED_BY_VALUES)
    return any(_is_known(as_tuple(node.meta.get("val"))) for node in nodes)


def _is_known(values: tuple[object, ...]) -> bool:
    first = values[0] if values else None
    return isinstance(first, torch.Tensor) and all(isinstance(size, int) for size in first.shape) and first.numel() > 0
