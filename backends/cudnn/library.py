"""The library: which rule writes which op, and how matched patterns become one call.

Place: given to ``backends.common.library`` by the backend. Input: the planner's matches, by pattern name and nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.fx

from mixbackend.backends.common.library import Library, Scope
from mixbackend.backends.cudnn.attention import write_attention
from mixbackend.backends.cudnn.convolutions import write_convolution, write_fused
from mixbackend.backends.cudnn.support import ATTENTION, CONVOLUTION
from mixbackend.backends.cudnn.written_attention import write_written
from mixbackend.contracts.describe_op import operator_name

Node = torch.fx.Node


def write_match(scope: Scope, pattern: str, matched: Sequence[Node]) -> str:
    """A matched pattern as one call."""
    if pattern.startswith("attention"):
        return write_written(scope, matched)
    product = next(node for node in matched if operator_name(node.target) == CONVOLUTION)
    return write_fused(scope, product, _other(matched, product) if pattern == "convolution_add_relu" else None)


def _other(matched: Sequence[Node], product: Node) -> Node:
    """What is added to the convolution."""
    added = next(node for node in matched if operator_name(node.target) == "aten.add.Tensor")
    left, right = added.args[:2]
    other = right if left is product else left
    assert isinstance(other, Node)
    return other


LIBRARY = Library(
    ops={CONVOLUTION: write_convolution, **dict.fromkeys(ATTENTION, write_attention)},
    match=write_match,
)
