"""Copies of captured graphs, for steps that rewrite theirs."""

from __future__ import annotations

import torch.fx

from mixbackend.contracts.torch_compat import graph_module_of


def copy_module(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same nodes, names and metas in a graph of its own."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph_module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph_module_of(graph_module, graph)
