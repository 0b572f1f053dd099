"""Positions of extremes: where rounding decides between values that are nearly equal, several positions are right.

Place: asked by ``verify`` about a result in whole numbers that is neither eager's nor the reference's.
Input: the region and what its values were. Output: whether the result names values that are as extreme, as far as
rounding tells.
Invariants: values that are computed exactly leave no choice: torch says which of equal ones it takes.
Non-goals: what a region goes on to compute from positions.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import Region
from mixbackend.contracts.describe_op import as_tuple
from mixbackend.contracts.torch_compat import schema_arguments

aten = torch.ops.aten

_ALONE: Mapping[Any, str] = {aten.argmax.default: "keepdim", aten.argmin.default: "keepdim"}
_SECOND: Mapping[Any, str] = {
    aten.max.dim: "keepdim",
    aten.min.dim: "keepdim",
    aten.topk.default: "",
    aten.sort.default: "",
}
"""Operators with positions as their only or second result, and the argument that keeps the dimension; empty: it
stays."""
_TIMES_EAGER = 2.0
"""How much farther off than eager's a value may be."""


@dataclass(frozen=True)
class Choice:
    """What an output chose from.

    Attributes:
        source: the node of the values.
        dim: along which it chose; ``None`` among all of them.
        kept: whether positions have that dimension.
    """

    source: torch.fx.Node
    dim: int | None
    kept: bool

    @classmethod
    def of(cls, region: Region, place: int) -> Choice | None:
        """Of an output that is nothing but positions; otherwise ``None``."""
        (output,) = region.graph_module.graph.find_nodes(op="output")
        returned = as_tuple(output.args[0])
        node = returned[place] if place < len(returned) else None
        if not isinstance(node, torch.fx.Node):
            return None
        known = _ALONE
        if node.target is operator.getitem and node.args[1] == 1:
            node, known = node.all_input_nodes[0], _SECOND
        if node.op != "call_function" or node.target not in known:
            return None
        schema = schema_arguments(node.target)
        arguments = {item.name: item.default for item in schema} | dict(node.kwargs)
        arguments |= {item.name: value for item, value in zip(schema, node.args, strict=False)}
        keeps = known[node.target]
        return cls(arguments["self"], arguments["dim"], bool(arguments[keeps]) if keeps else True)

    def values(self, interpreter: torch.fx.Interpreter, inputs: Sequence[Any]) -> torch.Tensor:
        """What it chose from, as an interpreter of the region's graph computes it."""
        found: list[torch.Tensor] = []
        run_node = interpreter.run_node

        def watched(n: torch.fx.Node) -> Any:
            value = run_node(n)
            if n is self.source:
                found.append(value)
            return value

        interpreter.run_node = watched  # type: ignore[method-assign]
        interpreter.run(*inputs)
        return found[0]

    def allows(
        self, mine: torch.Tensor, right: Sequence[torch.Tensor], values: torch.Tensor, errors: torch.Tensor
    ) -> bool:
        """Whether positions are right.

        Args:
            mine: the positions.
            right: others that are right; the first are those of ``values``.
            values: what is chosen from.
            errors: how far off eager's values are, of the shape of ``values``; nothing is known of what is not finite.
        """
        dim = self.dim
        if dim is None or values.dim() == 0:
            values, errors, dim = values.flatten(), errors.flatten(), 0
            mine, *right = (item.flatten() for item in (mine, *right))
        elif not self.kept:
            mine, *right = (item.unsqueeze(dim) for item in (mine, *right))
        if bool(((mine < 0) | (mine >= values.shape[dim])).any()) or _twice(mine, dim):
            return False
        short = (values.gather(dim, mine) - values.gather(dim, right[0])).abs()
        error = errors.nan_to_num(0.0, posinf=0.0).amax(dim, keepdim=True)
        near = (error > 0) & (short <= 2 * _TIMES_EAGER * error)
        for item in right:
            near |= mine == item
        return bool(near.all())


def _twice(positions: torch.Tensor, dim: int) -> bool:
    """Whether a position stands twice in a row."""
    return bool((positions.sort(dim).values.diff(dim=dim) == 0).any())
