"""Tensors with values that do not lie in their memory: zeros that torch never wrote, and lazily negated views.

Place: asked by ``compile.driver`` about a graph, and by ``compile.executable`` about its calls. Regions read memory;
torch's own kernels know better.
Input: a captured graph. Output: the graph without such zeros; whether it makes negated views; which arguments of its
calls are to be looked at every time.
Invariants: no region is handed such a tensor. A graph makes none (zeros are written out before it is described; one
with lazily negated values inside runs in eager). A call with one among its arguments runs in eager: there writing into
it works as well. Weights are looked at where they are bound.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.fx

from mixbackend.contracts import InputRole
from mixbackend.contracts.torch_compat import zeros_unwritten
from mixbackend.graph.describe import PlaceholderRole

_UNCHANGING = (InputRole.PARAMETER, InputRole.BUFFER, InputRole.SYMBOL)


def write_out_zeros(module: torch.fx.GraphModule) -> None:
    """Let zeros that torch would not write be ordinary ones."""
    found = module.graph.find_nodes(op="call_function", target=zeros_unwritten())
    for node in found:
        value = node.meta["val"]
        node.target = torch.ops.aten.full.default
        node.args = (node.args[0], 0)
        node.kwargs = {"dtype": value.dtype, "layout": value.layout, "device": value.device, "pin_memory": False}
        node.meta["val"] = torch.ops.aten.clone.default(value)
    if found:
        module.recompile()


def has_negated_values(module: torch.fx.GraphModule) -> bool:
    """Whether the graph makes views that are negated when they are read."""
    values = (node.meta.get("val") for node in module.graph.nodes)
    return any(isinstance(value, torch.Tensor) and value.is_neg() for value in values)


def changing_places(module: torch.fx.GraphModule, roles: Mapping[str, PlaceholderRole]) -> tuple[int, ...]:
    """Places of the arguments that are other tensors in every call: all but weights and numbers."""
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    return tuple(place for place, name in enumerate(names) if name not in roles or roles[name].role not in _UNCHANGING)
