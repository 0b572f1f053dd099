"""Softmax decomposition: softmaxes of a joint graph written out, so that their results follow from two numbers per row.

Place: between AOTAutograd's joint graph and its split; ``plan.rematerialization`` says for which softmaxes.
Input: a joint graph and nodes of it. Output: the same graph, changed in place, with marks for torch's split.

    y = _log_softmax(x, dim)      largest = amax(x, dim);          shifted = x - largest
                                  logarithm = log(sum(exp(shifted), dim));   y = shifted - logarithm

The largest value and the logarithm (of a softmax: the reciprocal of the sum) are saved; what is one number per element
is computed again. Two numbers and not their sum: where values are large, it would round away what tells them apart.
Invariants: computed in the type that torch's kernels compute in, float32 at least; dtype, sizes and strides of the
result are what they were, rounded where it was; no guard is added.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from mixbackend.contracts.describe_op import value_meta
from mixbackend.contracts.torch_compat import RECOMPUTATION_POLICY

aten = torch.ops.aten
_SOFTMAX, _LOG_SOFTMAX = aten._softmax.default, aten._log_softmax.default


def write_out(joint: torch.fx.GraphModule, softmaxes: Iterable[torch.fx.Node]) -> None:
    """Replace softmaxes by what they are made of.

    Args:
        joint: the graph.
        softmaxes: nodes of it with ``aten._softmax`` or ``aten._log_softmax``.
    """
    for node in softmaxes:
        with joint.graph.inserting_before(node):
            result = _written_out(_Writer(joint.graph, node), node)
        node.replace_all_uses_with(result)
        joint.graph.erase_node(node)
    joint.recompile()


def is_softmax(node: torch.fx.Node) -> bool:
    """Whether a node is what ``write_out`` takes."""
    return node.target in (_SOFTMAX, _LOG_SOFTMAX)


def _written_out(write: _Writer, node: torch.fx.Node) -> torch.fx.Node:
    value, dimension = node.args[:2]
    assert isinstance(value, torch.fx.Node)
    traced = node.meta["val"]
    value = write.cast(value, torch.promote_types(value.meta["val"].dtype, torch.float32))
    largest = write.saved(aten.amax.default, value, [dimension], True)
    shifted = write.again(aten.sub.Tensor, value, largest)
    exponents = write.again(aten.exp.default, shifted)
    total = write.saved(aten.sum.dim_IntList, exponents, [dimension], True)
    if node.target is _LOG_SOFTMAX:
        result = write.again(aten.sub.Tensor, shifted, write.saved(aten.log.default, total))
    else:
        result = write.again(aten.mul.Tensor, exponents, write.saved(aten.reciprocal.default, total))
    result = write.cast(result, traced.dtype)
    if value_meta(result.meta["val"]) != value_meta(traced):
        result = write.again(aten.clone.default, result, memory_format=torch.contiguous_format)
    return result


class _Writer:
    """Adds nodes with fake values in place of a softmax; they count to its module."""

    def __init__(self, graph: torch.fx.Graph, node: torch.fx.Node) -> None:
        self._graph = graph
        self._meta = {key: value for key, value in node.meta.items() if key not in ("val", "tensor_meta")}
        self._mode = node.meta["val"].fake_mode

    def saved(self, target: Any, *arguments: Any) -> torch.fx.Node:
        """A number per row."""
        return self._write(CheckpointPolicy.MUST_SAVE, target, arguments, {})

    def again(self, target: Any, *arguments: Any, **keywords: Any) -> torch.fx.Node:
        """A number per element."""
        return self._write(CheckpointPolicy.MUST_RECOMPUTE, target, arguments, keywords)

    def cast(self, node: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        """In another type, unless it has it."""
        return node if node.meta["val"].dtype == dtype else self.again(aten._to_copy.default, node, dtype=dtype)

    def _write(self, policy: CheckpointPolicy, target: Any, arguments: Any, keywords: dict[str, Any]) -> torch.fx.Node:
        node = self._graph.call_function(target, arguments, keywords)
        values = [item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in arguments]
        with self._mode:
            node.meta = {**self._meta, "val": target(*values, **keywords), RECOMPUTATION_POLICY: policy}
        return node
