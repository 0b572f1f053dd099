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
    return tuple({id(body): body for body in _named(module).values()}.values())


def copy_with_subgraphs(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of a graph as it was captured, with subgraphs in place of compiled bodies."""
    copied = copy_module(module)
    for name, body in _named(copied).items():
        setattr(copied, name, body.traced)
    return copied


def _named(module: torch.fx.GraphModule) -> dict[str, CompiledBody]:
    names = (str(node.target) for node in module.graph.find_nodes(op="get_attr"))
    named = {name: getattr(module, name, None) for name in names}
    return {name: body for name, body in named.items() if isinstance(body, CompiledBody)}
