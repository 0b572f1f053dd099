"""Copies of captured graphs, for steps that rewrite theirs."""

from __future__ import annotations

import torch.fx

from mixbackend.contracts.compiled_body import CompiledBody
from mixbackend.contracts.torch_compat import graph_module_of


def copy_module(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same nodes, names and metas in a graph of its own."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph_module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph_module_of(graph_module, graph)


def compiled_bodies(module: torch.fx.GraphModule) -> tuple[CompiledBody, ...]:
    """The compiled bodies that a graph names, each once."""
    named = (getattr(module, str(node.target), None) for node in module.graph.find_nodes(op="get_attr"))
    return tuple({id(body): body for body in named if isinstance(body, CompiledBody)}.values())


def with_subgraphs(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph as it was captured, with subgraphs in place of compiled bodies."""
    if not compiled_bodies(module):
        return module
    copied = copy_module(module)
    for node in copied.graph.find_nodes(op="get_attr"):
        body = getattr(copied, str(node.target), None)
        if isinstance(body, CompiledBody):
            setattr(copied, str(node.target), body.traced)
    return copied
