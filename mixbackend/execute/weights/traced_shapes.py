"""Traced shapes: whether the weights of a call have the shapes that its graph was traced with.

Place: asked by ``compile.executable`` where weights are not those of the call before.
Input: a captured graph and the roles of its placeholders; then the arguments of calls. Output: what differs.
torch up to 2.11 does not trace a program again after an ``unsqueeze_`` gave one of its buffers another shape in the
call before. Code that was made for the traced shape would return that one; the graph's operators run one by one follow
the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.graph.describe import PlaceholderRole


class TracedShapes:
    """Knows those weights of one graph that have numbers as sizes.

    Args:
        module: the captured graph.
        roles: of its placeholders.
    """

    def __init__(self, module: torch.fx.GraphModule, roles: Mapping[str, PlaceholderRole]) -> None:
        self._known: list[tuple[int, str, tuple[int, ...]]] = []
        for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
            role, value = roles.get(node.name), node.meta.get("val")
            if role is None or not role.role.is_weight or not isinstance(value, torch.Tensor):
                continue
            if all(isinstance(size, int) for size in value.shape):
                self._known.append((place, role.source or node.name, tuple(value.shape)))

    def difference(self, arguments: Sequence[Any]) -> str:
        """The first weight of another shape, in words; empty where all have theirs."""
        for place, name, shape in self._known:
            if arguments[place].shape != shape:
                return f"weight {name} has shape {tuple(arguments[place].shape)}, and {shape} when it was traced"
        return ""
