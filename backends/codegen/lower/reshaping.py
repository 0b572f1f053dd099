"""Rules of views: other sizes, other orders, parts of a tensor.

Place: registered by ``lower.table``; ``lower.view`` does the work.
Semantics: nothing is computed. Sizes are those that torch promises, so ``-1`` and clamped bounds are settled already.
Non-goals: ``as_strided`` and ``view.dtype``, which read memory and not elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from mixbackend.backends.codegen.ir.indices import floor_div, modulo
from mixbackend.backends.codegen.lower import view
from mixbackend.backends.codegen.lower.broadcast import refuse_undecided
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.sizes import import_size
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.contracts import TensorMeta

_END = 2**63 - 1


@rule("aten.reshape.default")
def reshape(lowering: Lowering, self: Tensor, **sizes: Any) -> Tensor:
    """The same elements under other sizes."""
    return view.reshape(lowering, self, lowering.output_sizes)


@rule("aten.expand.default")
def expand(lowering: Lowering, self: Tensor, **sizes: Any) -> Tensor:
    """Repeated without copying."""
    refuse_undecided(lowering, (self,), lowering.output_sizes)
    return view.expand(self, lowering.output_sizes)


@rule("aten.permute.default")
def permute(lowering: Lowering, self: Tensor, dims: Sequence[int]) -> Tensor:
    """Dimensions in another order."""
    return view.permute(self, dims)


@rule("aten.transpose.int")
def transpose(lowering: Lowering, self: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged."""
    return view.transpose(self, dim0, dim1)


@rule("aten.t.default")
def transpose_matrix(lowering: Lowering, self: Tensor) -> Tensor:
    """Rows and columns exchanged; vectors stay."""
    return self if self.rank < 2 else view.transpose(self, 0, 1)


@rule("aten.unsqueeze.default")
def unsqueeze(lowering: Lowering, self: Tensor, dim: int) -> Tensor:
    """A new dimension of size 1."""
    return view.unsqueeze(self, dim)


@rule("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(lowering: Lowering, self: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without dimensions of size 1."""
    axes = range(self.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    result = view.squeeze(self, axes)
    if result.rank != len(lowering.output_sizes):
        raise RefusedError("dynamic-shape", f"which of {list(self.sizes)} are 1 depends on sizes")
    return result


# -- parts ------------------------------------------------------------------------------------------------------------


def position_in(index: Any, size: sympy.Expr) -> sympy.Expr:
    """A position counted from the end where negative.

    Raises:
        RefusedError: its sign is known at run time only.
    """
    index = sympy.sympify(index)
    if index.is_nonnegative:
        return index
    if index.is_negative:
        return size + index
    raise RefusedError("dynamic-shape", f"the sign of position {index} is known at run time only")


def first_of_slice(start: Any, end: Any, step: Any, size: sympy.Expr, length: sympy.Expr) -> sympy.Expr:
    """First position of a slice, which is in range if the slice has any.

    Args:
        size: of the sliced dimension.
        length: of the slice.
    """
    start = sympy.sympify(0 if start is None else start)
    if start.is_Integer and size.is_Integer:
        start = start if start >= 0 else max(sympy.Integer(0), start + size)
        return min(start, size)
    if start.is_nonnegative:
        return start
    if start.is_negative and step == 1 and (end is None or end == _END):
        # A slice to the end has as many elements as there are positions from its first on.
        return sympy.expand(size - length)
    if start.is_negative:
        return sympy.Max(0, size + start)
    raise RefusedError("dynamic-shape", f"the sign of position {start} is known at run time only")


@rule("aten.select.int")
def select(lowering: Lowering, self: Tensor, dim: int, index: Any) -> Tensor:
    """One position of a dimension."""
    return view.select(self, dim, position_in(index, self.sizes[dim % self.rank]))


@rule("aten.slice.Tensor")
def slice_tensor(lowering: Lowering, self: Tensor, dim: int, start: Any, end: Any, step: Any) -> Tensor:
    """Positions from ``start`` to ``end``, which may be negative or out of range."""
    axis = dim % self.rank
    length = lowering.output_sizes[axis]
    first = first_of_slice(start, end, step, self.sizes[axis], length)
    return view.slice_axis(self, axis, first, length, step)


def _output_sizes(lowering: Lowering) -> list[Index]:
    """Sizes of all of the op's results."""
    assert lowering.view is not None
    metas = [meta for meta in lowering.view.outputs if isinstance(meta, TensorMeta)]
    return [tuple(map(import_size, meta.shape)) for meta in metas]


@rule(
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.unsafe_split.Tensor",
    "aten.unsafe_split_with_sizes.default",
)
def split(lowering: Lowering, self: Tensor, dim: int, **sizes: Any) -> tuple[Tensor, ...]:
    """Consecutive pieces of a dimension."""
    axis, start, pieces = dim % self.rank, sympy.Integer(0), []
    for piece in _output_sizes(lowering):
        pieces.append(view.slice_axis(self, axis, start, piece[axis]))
        start = start + piece[axis]
    return tuple(pieces)


@rule("aten.unbind.int")
def unbind(lowering: Lowering, self: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Every position of a dimension."""
    return tuple(view.select(self, dim, position) for position in range(len(_output_sizes(lowering))))


@rule("aten.diagonal.default")
def diagonal(lowering: Lowering, self: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    """Positions where two indices differ by ``offset``."""
    return view.diagonal(self, dim1, dim2, offset, lowering.output_sizes[-1])


@rule("aten.unfold.default")
def unfold(lowering: Lowering, self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows along a dimension."""
    if self.rank == 0:
        return view.expand(self, lowering.output_sizes)
    return view.unfold(self, dimension, size, step, lowering.output_sizes[dimension % self.rank])


# -- reordered and repeated -------------------------------------------------------------------------------------------


def flipped(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    """Counted from the other end along dimensions."""
    axes = {axis % tensor.rank for axis in dims} if tensor.rank else set()

    def at(index: Index) -> Any:
        return tensor.at(
            tuple(
                size - 1 - place if axis in axes else place
                for axis, (size, place) in enumerate(zip(tensor.sizes, index, strict=True))
            )
        )

    return Tensor(tensor.sizes, tensor.dtype, at)


@rule("aten.flip.default")
def flip(lowering: Lowering, self: Tensor, dims: Sequence[int]) -> Tensor:
    """Counted from the other end."""
    return flipped(self, dims)


@rule("aten.rot90.default")
def rotate(lowering: Lowering, self: Tensor, k: int, dims: Sequence[int]) -> Tensor:
    """Turned by ``k`` right angles in a plane."""
    first, second = dims
    turns = k % 4
    if turns == 1:
        return view.alias(view.transpose(flipped(self, [second]), first, second))
    if turns == 2:
        return flipped(self, dims)
    if turns == 3:
        return view.alias(view.transpose(flipped(self, [first]), first, second))
    return view.alias(self)


@rule("aten.roll.default")
def roll(lowering: Lowering, self: Tensor, shifts: Sequence[Any], dims: Sequence[int]) -> Tensor:
    """Shifted along dimensions, what leaves at the end entering at the start."""
    if not dims:
        flat = view.reshape(lowering, self, (sympy.prod(self.sizes),))
        return view.alias(view.reshape(lowering, rolled(lowering, flat, 0, shifts[0]), self.sizes))
    for axis, shift in zip(dims, shifts, strict=True):
        self = rolled(lowering, self, axis % self.rank, shift) if self.rank else self
    return view.alias(self)


def rolled(lowering: Lowering, tensor: Tensor, axis: int, shift: Any) -> Tensor:
    """A tensor shifted along one dimension, read where it lies."""
    size = tensor.sizes[axis]
    if size == 0:
        return tensor
    back = modulo(-sympy.sympify(shift), size, lowering.ranges)

    def at(index: Index) -> Any:
        return tensor.at((*index[:axis], modulo(index[axis] + back, size, lowering.ranges), *index[axis + 1 :]))

    return Tensor(tensor.sizes, tensor.dtype, at)


@rule("aten.repeat.default")
def repeat(lowering: Lowering, self: Tensor, repeats: Sequence[Any]) -> Tensor:
    """Copies side by side."""
    wanted = lowering.output_sizes
    fresh = len(wanted) - self.rank
    if any(size == 0 for size in wanted):
        return view.alias(view.nothing(self, wanted))

    def at(index: Index) -> Any:
        own = zip(self.sizes, wanted[fresh:], index[fresh:], strict=True)
        return self.at(
            tuple(place if size == target else modulo(place, size, lowering.ranges) for size, target, place in own)
        )

    return Tensor(wanted, self.dtype, at)


@rule("aten.pixel_shuffle.default")
def pixel_shuffle(lowering: Lowering, self: Tensor, upscale_factor: int) -> Tensor:
    """Channels spread over a grid of pixels."""
    *batch, _, height, width = self.sizes
    channels, factor, rank = lowering.output_sizes[-3], upscale_factor, len(batch)
    apart = view.reshape(lowering, self, (*batch, channels, factor, factor, height, width))
    order = (*range(rank), *(rank + place for place in (0, 3, 1, 4, 2)))
    return view.alias(view.reshape(lowering, view.permute(apart, order), lowering.output_sizes))


@rule("aten.pixel_unshuffle.default")
def pixel_unshuffle(lowering: Lowering, self: Tensor, downscale_factor: int) -> Tensor:
    """Grids of pixels gathered into channels."""
    *batch, channels, _, _ = self.sizes
    height, width = lowering.output_sizes[-2:]
    factor, rank = downscale_factor, len(batch)
    apart = view.reshape(lowering, self, (*batch, channels, height, factor, width, factor))
    order = (*range(rank), *(rank + place for place in (0, 2, 4, 1, 3)))
    return view.alias(view.reshape(lowering, view.permute(apart, order), lowering.output_sizes))


@rule("aten.channel_shuffle.default")
def channel_shuffle(lowering: Lowering, self: Tensor, groups: int) -> Tensor:
    """Channels of all groups interleaved."""
    wanted, ranges = lowering.output_sizes, lowering.ranges
    # Torch raises where the channels are no multiple of the groups, but no size says so.
    each = floor_div(self.sizes[1], groups, ranges)
    if any(size == 0 for size in wanted):
        return view.alias(view.nothing(self, wanted))

    def at(index: Index) -> Any:
        place = modulo(index[1], groups, ranges) * each + floor_div(index[1], groups, ranges)
        return self.at((index[0], place, *index[2:]))

    return Tensor(wanted, self.dtype, at)
