"""Scalar expressions over all points of a grid at once.

Place: below both interpreters; how memory is read is theirs to say.
Input: expressions of ``ir.scalar`` and a grid of points. Output: tensors that broadcast to the grid.
Invariants: ``SCALAR_OPS[...].meaning`` defines every operator; a result has the type its node states, or an error says
so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from mixbackend.backends.codegen.interpret.indices import Value, Values, evaluate_index
from mixbackend.backends.codegen.ir.grammar import walk
from mixbackend.backends.codegen.ir.scalar import (
    SCALAR_OPS,
    Apply,
    Bindings,
    Constant,
    Expr,
    IndexValue,
    Load,
    Local,
    Read,
)
from mixbackend.contracts import InputRangeError, IrError

Element = Load | Read


class Points(ABC):
    """A grid of points, and what expressions are worth there.

    Attributes:
        shape: of the grid.
        values: of every symbol: a number, or a tensor that broadcasts to ``shape``.
    """

    def __init__(self, shape: Sequence[int], values: Values) -> None:
        self.shape = tuple(shape)
        self.values = values

    @abstractmethod
    def element(self, node: Element, symbols: Values, mask: torch.Tensor | None) -> torch.Tensor:
        """Elements in memory; where the mask is false ``node.other``, with nothing read.

        Args:
            symbols: values of all symbols in its index, bound ones included.
        """

    @abstractmethod
    def local(self, name: str) -> torch.Tensor:
        """A value computed earlier at the same points."""

    def evaluate(self, *roots: Expr) -> list[torch.Tensor]:
        """Values of expressions, each part computed once."""
        done: dict[Expr, torch.Tensor] = {}
        for node in walk(*roots):
            result = self._node(node, done)
            if result.dtype != node.dtype:
                raise IrError(f"a value of type {node.dtype} is computed as {result.dtype}", where=str(node))
            done[node] = result
        return [done[root] for root in roots]

    def bound(self, bindings: Bindings, done: Mapping[Expr, torch.Tensor]) -> Values:
        """Values of all symbols, with run-time integers added."""
        return {**self.values, **{symbol: done[value].to(torch.int64) for symbol, value in bindings}}

    def whole(self, value: torch.Tensor) -> torch.Tensor:
        """A value at every point."""
        return value.expand(self.shape)

    def _node(self, node: Expr, done: Mapping[Expr, torch.Tensor]) -> torch.Tensor:
        match node:
            case Constant():
                return torch.tensor(node.value, dtype=node.dtype)
            case IndexValue():
                return _as_tensor(evaluate_index(node.expression, self.values)).to(node.dtype)
            case Local():
                return self.local(node.name)
            case Load() | Read():
                mask = None if node.mask is None else done[node.mask]
                return self.element(node, self.bound(node.bindings, done), mask)
            case Apply(op="to_dtype"):
                return done[node.arguments[0]].to(node.dtype)
            case Apply(op="corrected"):
                value, given = (done[argument] for argument in node.arguments)
                if bool(self.whole(value != given).any()):
                    raise InputRangeError("an input is out of range", where=str(node))
                return value
            case Apply():
                return SCALAR_OPS[node.op].meaning(*(done[argument] for argument in node.arguments))


def as_positions(value: Value) -> torch.Tensor:
    """An index as a tensor, whether it differs between points or not."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.int64)


def _as_tensor(value: Value) -> torch.Tensor:
    """A number as it is passed: 64 bits wide."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else as_positions(value)


def find_outside(
    positions: Sequence[torch.Tensor], sizes: Sequence[int], mask: torch.Tensor | None
) -> tuple[tuple[int, ...], torch.Tensor]:
    """Whether indices that count are in range.

    Returns:
        The first index that is not (empty if all are), and for every point whether it is in range.
    """
    inside = torch.ones((), dtype=torch.bool)
    for position, size in zip(positions, sizes, strict=True):
        inside = inside & (position >= 0) & (position < size)
    outside = ~inside if mask is None else ~inside & mask
    if not bool(outside.any()):
        return (), inside
    every = torch.broadcast_tensors(outside, *positions)
    first = every[0].nonzero()[0]
    return tuple(int(position[tuple(first)]) for position in every[1:]), inside
