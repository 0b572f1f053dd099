"""Which dimensions of a tensor are folded away, and what folding them gives.

Place: below the rules of reductions, normalisations, softmax and losses.
Input: tensors of ``lower.tensor``. Output: tensors over the kept dimensions.
Invariants: reduced loops stay in dimension order; dimensions of size 1 are no loops, so a fold over nothing else is a
plain map. A fold has the compute type of its value as accumulator.
Non-goals: how a fold is summed; a target adds in an order at least as accurate as torch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, as_stored
from mixbackend.backends.codegen.ir.stages import ReductionKind
from mixbackend.backends.codegen.lower.lowering import Lowering, ValueFunction
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.contracts import TensorMeta
from mixbackend.contracts.sizes import Condition, known


@dataclass(frozen=True)
class Axes:
    """A split of dimensions into kept and reduced ones.

    Attributes:
        sizes: of the whole tensor.
        reduced: dimensions that go, increasing.
    """

    sizes: Index
    reduced: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """Dimensions that stay, increasing."""
        return tuple(place for place in range(len(self.sizes)) if place not in self.reduced)

    @property
    def kept_sizes(self) -> Index:
        """Sizes of the dimensions that stay."""
        return tuple(self.sizes[place] for place in self.kept)

    @property
    def folded(self) -> tuple[int, ...]:
        """Reduced dimensions that are loops: those not of size 1."""
        return tuple(place for place in self.reduced if self.sizes[place] != 1)

    @property
    def count(self) -> sympy.Expr:
        """Number of values folded into one."""
        return sympy.Mul(*(self.sizes[place] for place in self.reduced))

    def join(self, kept: Sequence[Any], folded: Sequence[Any]) -> Index:
        """Index of the whole tensor."""
        index = [sympy.Integer(0)] * len(self.sizes)
        for place, item in [*zip(self.kept, kept, strict=True), *zip(self.folded, folded, strict=True)]:
            index[place] = sympy.sympify(item)
        return tuple(index)

    def keep(self, index: Sequence[Any]) -> Index:
        """The kept part of an index of the whole tensor."""
        return tuple(index[place] for place in self.kept)


def axes_of(tensor: Tensor, dimensions: int | Iterable[int] | None) -> Axes:
    """Axes for an operator's ``dim`` argument; ``None`` and an empty list mean all dimensions."""
    if isinstance(dimensions, int):
        dimensions = (dimensions,)
    chosen = tuple(dimensions or ())
    if not chosen:
        return Axes(tensor.sizes, tuple(range(tensor.rank)))
    if tensor.rank == 0:
        return Axes((), ())
    return Axes(tensor.sizes, tuple(sorted(place % tensor.rank for place in chosen)))


def fold(
    lowering: Lowering,
    kind: ReductionKind,
    axes: Axes,
    value: ValueFunction,
    dtypes: Sequence[torch.dtype],
) -> tuple[Tensor, ...]:
    """Fold ``value`` (at an index of the whole tensor) over the reduced dimensions.

    Args:
        dtypes: storage type of each result, see ``Lowering.reduce``.

    Returns:
        One tensor over the kept dimensions per result of the kind.
    """
    if axes.folded:
        sizes = tuple(axes.sizes[place] for place in axes.folded)
        joined = lambda kept, folded: value(axes.join(kept, folded))  # noqa: E731 - one expression
        return lowering.reduce(kind, axes.kept_sizes, sizes, joined, dtypes)
    single = lambda kept: value(axes.join(kept, ()))  # noqa: E731 - one expression
    functions = _fold_of_one(kind, single)
    pairs = zip(functions, dtypes, strict=True)
    return tuple(lowering.map(axes.kept_sizes, dtype, function) for function, dtype in pairs)


def _fold_of_one(kind: ReductionKind, value: ValueFunction) -> tuple[ValueFunction, ...]:
    """The results of a fold over a single value."""
    if kind in ("argmax", "argmin"):
        return (lambda index: Constant(torch.int64, 0),)
    if kind == "welford":
        # Not a plain zero: the distance of an infinite value from itself is NaN.
        return value, lambda index: value(index) - value(index)
    return (value,)


def with_dimensions(lowering: Lowering, tensor: Tensor, axes: Axes, keepdim: bool) -> Tensor:
    """A folded tensor with the reduced dimensions put back as size 1 if asked for."""
    if not keepdim or not axes.reduced:
        return tensor
    sizes = [sympy.Integer(1) if place in axes.reduced else size for place, size in enumerate(axes.sizes)]
    return lowering.lazy(sizes, tensor.dtype, lambda index: tensor.at(axes.keep(index)))


def count_of(number: sympy.Expr, dtype: torch.dtype) -> Expr:
    """A number of elements as a floating value."""
    if number.is_Integer:
        return Constant(dtype, float(number))
    return IndexValue(dtype, number)


def require_values(lowering: Lowering, tensor: Tensor, axes: Axes, argument: str = "self") -> None:
    """Refuse a fold that has no value over nothing (an extreme) if a reduced dimension may be empty.

    Args:
        argument: name under which the op takes the tensor.

    Raises:
        RefusedError: eager raises there, or whether it does is known only at run time.
    """
    assert lowering.view is not None
    meta = lowering.view.tensor(argument)
    assert isinstance(meta, TensorMeta)
    if any(size == 0 for size in axes.kept_sizes):
        return
    for place in axes.reduced:
        size = tensor.sizes[place]
        if size == 0:
            raise RefusedError("declined", f"dimension {place} is empty: folding it gives no value")
        if known(Condition(meta.shape[place], "at_least", 1)) != "yes":
            raise RefusedError("dynamic-shape", f"dimension {place} of size {size} may be empty")


def converted(lowering: Lowering, tensor: Tensor, dtype: torch.dtype) -> ValueFunction:
    """The tensor's values in a compute type."""
    return lambda index: lowering.cast(tensor.at(index), dtype)


def in_order(lowering: Lowering, tensor: Tensor, truths: torch.dtype = torch.int32) -> ValueFunction:
    """The tensor's values in a type in which they can be ordered, with no digit beyond those that memory would keep.

    Where an extreme lies is a decision: 16-bit values that are equal in memory need not be so before they are rounded.

    Args:
        truths: the type in which truth values are ordered.
    """
    ordered = truths if tensor.dtype == torch.bool else tensor.compute
    return lambda index: lowering.cast(as_stored(tensor.at(index), tensor.dtype), ordered)
