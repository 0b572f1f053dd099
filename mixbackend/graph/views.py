"""Views of a joint graph: those are taken out that hide from torch's split what may be computed again.

Place: between AOTAutograd's joint graph and ``plan.rematerialization``; a pass of ``passes.joint_passes``.
Input: a joint graph. Output: the same graph, changed in place, with ``detach`` only where the graph returns it.
torch's split knows the operators that inductor's decompositions leave over, and takes any other for one that is never
fused. Autograd keeps results of tanh, softmax or sigmoid as ``detach`` of them, which inductor decomposes and we do
not: so each such result was saved, however cheap it is to compute once more from what is saved anyway.
Invariants: values and strides are what they were; each output is made by the op that made it.
Non-goals: other views. The split reads those through the op behind them, or they are no obstacle.
"""

from __future__ import annotations

import torch
import torch.fx

_DETACH = torch.ops.aten.detach.default


def applies(joint: torch.fx.GraphModule) -> bool:
    """Whether there is a ``detach``."""
    return bool(joint.graph.find_nodes(op="call_function", target=_DETACH))


def read_through_detach(joint: torch.fx.GraphModule) -> int:
    """Let what reads a tensor through ``detach`` read the tensor; returns how many of them were read through."""
    read_through = 0
    for node in joint.graph.find_nodes(op="call_function", target=_DETACH):
        (source,) = node.all_input_nodes
        read_through += bool(node.replace_all_uses_with(source, delete_user_cb=lambda reader: reader.op != "output"))
        if not node.users:
            joint.graph.erase_node(node)
    joint.recompile()
    return read_through
