"""New nodes of a captured graph, with the fake values that later passes read.

Place: below passes that write ops out. Input: the graph, a node that has the module and source of the new ones, an
operator with its arguments. Output: the node, where the graph inserts.
Invariants: no guard is added.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat import rerun_fake

aten = torch.ops.aten


class NodeWriter:
    """Writes nodes that count to another one.

    Args:
        graph: is changed.
        like: node that has the same module and source.
    """

    def __init__(self, graph: torch.fx.Graph, like: torch.fx.Node) -> None:
        self._graph = graph
        self._meta = {key: value for key, value in like.meta.items() if key != "val"}
        self._like = like.meta.get("val")

    def __call__(self, target: Any, *arguments: Any, **options: Any) -> torch.fx.Node:
        made = self._graph.call_function(target, arguments, options)
        given = torch.fx.node.map_arg(arguments, lambda node: node.meta["val"])
        made.meta = {**self._meta, "val": rerun_fake(target, given, options, self._like)}
        return made

    def converted(self, node: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        """The value in a type: the node itself, where it has that."""
        return node if node.meta["val"].dtype == dtype else self(aten._to_copy.default, node, dtype=dtype)
