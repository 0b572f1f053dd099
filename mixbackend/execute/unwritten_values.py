"""Tensors whose values do not lie in their memory: zeros that torch never wrote, and lazily negated views.

Place: around every compiled graph, in ``compile.build``. Regions read memory; torch's own kernels know better.
Input: a captured graph; the arguments of its calls. Output: what runs the graph in eager where such tensors occur.
Invariants: no region is handed such a tensor. A graph makes none (zeros are written out before it is described; one
with lazily negated values inside runs in eager). A call with one among its arguments runs in eager: there writing into
it works as well. Weights are looked at until they are found to be plain once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import InputRole
from mixbackend.contracts.torch_compat import values_lie_in_memory, zeros_unwritten
from mixbackend.execute.run_function import Run
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


class WrittenValues:
    """Runs a graph, in eager where an argument's values do not lie in its memory.

    Args:
        run: the graph.
        eager: the same in eager.
        names: of its placeholders.
        roles: of those that have one.
    """

    def __init__(self, run: Run, eager: Run, names: Sequence[str], roles: Mapping[str, PlaceholderRole]) -> None:
        self._held = run
        self._eager = eager
        self._looked_at = [
            place for place, name in enumerate(names) if name not in roles or roles[name].role not in _UNCHANGING
        ]
        self._run: Callable[[list[Any]], Sequence[Any]] = self._first

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        return self._run(arguments)

    def _first(self, arguments: list[Any]) -> Sequence[Any]:
        if not all(values_lie_in_memory(value) for value in arguments):
            return self._eager(arguments)
        self._run = self._later
        return self._held(arguments)

    def _later(self, arguments: list[Any]) -> Sequence[Any]:
        for place in self._looked_at:
            if not values_lie_in_memory(arguments[place]):
                return self._eager(arguments)
        return self._held(arguments)
