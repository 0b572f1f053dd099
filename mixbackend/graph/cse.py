"""Common subexpressions: what is computed twice from the same values is computed once.

Place: a pass of ``passes.CAPTURED``. Input and output: the fx graph, changed in place.
Models repeat themselves unnoticed: the mask of every attention layer is made anew from the same mask.
Invariants: an op is only replaced by an earlier one with the same operator and arguments. Ops that draw random numbers,
write, communicate or have effects stay; so does whatever shares memory with an output of the graph, since eager gives
every output memory of its own.
"""

from __future__ import annotations

import torch.fx

from mixbackend.contracts import OpTag
from mixbackend.contracts.describe_op import describe_op
from mixbackend.contracts.torch_compat import is_mutating, is_operator
from mixbackend.graph.aliases import sharing_with_outputs

_APART = frozenset(
    {
        OpTag.RANDOM,
        OpTag.COLLECTIVE,
        OpTag.HIGHER_ORDER,
        OpTag.DATA_DEPENDENT,
        OpTag.UNINITIALIZED,
        OpTag.EFFECT,
    }
)


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether some operator is called more than once."""
    targets = [node.target for node in graph_module.graph.nodes if node.op == "call_function"]
    return len(set(targets)) < len(targets)


def merge_common_ops(graph_module: torch.fx.GraphModule) -> int:
    """Merge equal ops in place; returns how many went."""
    graph = graph_module.graph
    leaving: set[torch.fx.Node] | None = None
    first: dict[str, torch.fx.Node] = {}
    merged = 0
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        if is_operator(node.target) and is_mutating(node.target):
            # What was read before is something else now.
            first.clear()
            continue
        # Nodes print as their names, and numbers so that 1, 1.0 and True differ.
        key = f"{node.target} {node.args} {node.kwargs}"
        known = first.setdefault(key, node)
        if known is node:
            continue
        leaving = sharing_with_outputs(graph) if leaving is None else leaving
        if node in leaving or describe_op(node).tags & _APART:
            continue
        node.replace_all_uses_with(known)
        graph.erase_node(node)
        merged += 1
    return merged
