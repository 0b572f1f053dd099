"""Copies of captured graphs, for steps that rewrite theirs."""

from __future__ import annotations

import torch.fx


def copy_module(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same nodes, names and metas in a graph of its own."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph_module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return torch.fx.GraphModule(graph_module, graph)
