"""Operands at an index: broadcasting and reading in the type of an op.

Place: between ``promotion`` and the pointwise rules.
Invariants: sizes may be symbolic; a dimension is repeated only where its size is the number 1; all others must be those
of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Expr
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import Operand, constant, convert, rounded_constant
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

ZERO = sympy.Integer(0)
Function = Callable[..., Expr]


def broadcast_index(sizes: Index, index: Index) -> Index:
    """Index of a tensor of ``sizes`` for an index of what it is broadcast to."""
    own = index[len(index) - len(sizes) :]
    return tuple(ZERO if size == 1 else place for size, place in zip(sizes, own, strict=True))


def broadcast_sizes(*shapes: Index) -> Index:
    """Sizes to which all shapes broadcast."""
    rank = max(map(len, shapes), default=0)
    padded = [(sympy.Integer(1),) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in column if size != 1), sympy.Integer(1)) for column in zip(*padded, strict=True))


def read(operand: Operand, index: Index, dtype: torch.dtype, *, rounded: bool = False) -> Expr:
    """An operand's value where the result has ``index``, converted to ``dtype`` and widened to its compute type.

    Args:
        rounded: whether numbers are rounded to 16-bit types, as where eager makes a tensor of them.
    """
    if not isinstance(operand, Tensor):
        return rounded_constant(operand, dtype) if rounded else constant(operand, dtype)
    return convert(operand.at(broadcast_index(operand.sizes, index)), operand.dtype, dtype)


def pointwise(
    lowering: Lowering,
    operands: Sequence[Operand],
    dtype: torch.dtype,
    function: Function,
    *,
    rounded: bool = False,
) -> Tensor:
    """The op's first output, computed point by point from operands in the compute type of ``dtype``.

    Args:
        dtype: in which it is computed; the result has the output's own type.
        function: takes one expression per operand.
        rounded: see ``read``.
    """

    refuse_undecided(lowering, operands, lowering.output_sizes)

    def value(index: Index) -> Expr:
        return function(*(read(operand, index, dtype, rounded=rounded) for operand in operands))

    return lowering.map(lowering.output_sizes, lowering.output_dtype, value)


def formula_rule(*operators: str, rounded: bool = False) -> Callable[[Function], Function]:
    """Decorator: a formula of an op's arguments, all tensors or numbers, in the type of its result, becomes its rule.

    Args:
        rounded: see ``read``.
    """

    def register(function: Function) -> Function:
        def lower(lowering: Lowering, **operands: Operand) -> Tensor:
            return pointwise(lowering, tuple(operands.values()), lowering.output_dtype, function, rounded=rounded)

        rule(*operators)(lower)
        return function

    return register


def refuse_undecided(lowering: Lowering, operands: Iterable[Operand], sizes: Index) -> None:
    """Refuse operands with a size that may be 1: torch guards on it, and still writes it as it was computed.

    What is broadcast to a size of 1 has that size, however it is written. Torch asks of every operand whether its size
    is that of the result, and keeps the answer as a guard: two expressions that had one value over 1 when the graph was
    captured are equal in every call (``s`` and ``2 * (s // 2)``, where ``s`` is guarded to be even).

    Raises:
        RefusedError: a size is neither the number 1 nor that of what the operand is broadcast to.
    """
    for operand in operands:
        own = operand.sizes if isinstance(operand, Tensor) else ()
        for size, whole in zip(reversed(own), reversed(sizes), strict=False):
            if whole == 1 or size in (1, whole) or sympy.expand(size - whole) == 0:
                continue
            captured = lowering.captured_size(size)
            if captured is None or captured <= 1 or captured != lowering.captured_size(whole):
                raise RefusedError("dynamic-shape", f"whether {size} is {whole} or 1 depends on sizes")
