"""Loops of eager: gradients that differ at NaN with the place of an element in memory.

Place: below ``execute.reference``. Input: a region. Output: an interpreter that computes these gradients whole vectors
at a time, or element by element.
On processors eager computes most elements of contiguous tensors by vectors, and what is left over, or strided, one by
one; a few of its gradients treat a NaN otherwise here than there. Neither is more right than the other.
Invariants: results are those of eager's own kernels; only where a value is NaN do they depend on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import Region

_VECTOR = 128
"""Elements that hold whole vectors of every type, two at a time, as the loops take them."""

OF_TWO_MINDS: frozenset[Any] = frozenset(
    getattr(torch.ops.aten, f"{name}_backward").default
    for name in ("elu", "hardswish", "hardtanh", "hardshrink", "softshrink", "logit")
)
"""Operators with loops that differ."""

Loop = Callable[[torch.Tensor], torch.Tensor]


def by_vectors(flat: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor of one dimension, and zeros that make the last vector whole."""
    return torch.cat([flat, flat.new_zeros(-flat.numel() % _VECTOR)])


def one_by_one(flat: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor of one dimension, with a gap after each."""
    return torch.stack([flat, flat], 1)[:, 0]


LOOPS: tuple[Loop, ...] = (by_vectors, one_by_one)


def looped(operator: Any, loop: Loop, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What an operator of ``OF_TWO_MINDS`` computes in one of its loops."""
    tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
    shape = torch.broadcast_shapes(*(item.shape for item in tensors))

    def laid(value: Any) -> Any:
        return loop(value.expand(shape).reshape(-1)) if isinstance(value, torch.Tensor) else value

    result = operator(*map(laid, args), **{name: laid(value) for name, value in kwargs.items()})
    return result[: shape.numel()].reshape(shape)


def loops_of(region: Region) -> tuple[Loop, ...]:
    """The loops that may give a region other results; none where it has no such operator."""
    return LOOPS if any(node.target in OF_TWO_MINDS for node in region.graph_module.graph.nodes) else ()


class LoopInterpreter(torch.fx.Interpreter):
    """Runs a graph in eager, with these operators in one of their loops."""

    def __init__(self, graph_module: torch.fx.GraphModule, loop: Loop | None) -> None:
        super().__init__(graph_module)
        self._loop = loop

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operator."""
        if self._loop is not None and target in OF_TWO_MINDS:
            return looped(target, self._loop, *args, **kwargs)
        return super().call_function(target, args, kwargs)
