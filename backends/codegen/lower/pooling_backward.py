"""Rules of the gradients of pooling.

Place: registered by ``lower.table``.
Semantics: every position gathers from the windows that cover it, which needs no atomic writes. The saved indices of a
maximum are those of the forward op: inside the window, in the input's plane. Where too many windows cover a position to
list them, averages are reduced over them and maxima are scattered; maxima also where that was measured to be quicker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from mixbackend.backends.codegen.ir.indices import flatten, unflatten
from mixbackend.backends.codegen.ir.scalar import Bindings, Constant, Expr, apply
from mixbackend.backends.codegen.lower.access import addressable, check_index, integer, load, run_time_index
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.pooling import (
    adaptive_divisor,
    adaptive_windows,
    divided,
    strided_divisor,
    strided_windows,
)
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.scatter import scattered
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.windows import Windows, folded, is_unrolled, joined


def covering_windows(
    lowering: Lowering, axes: Sequence[Windows], index: Index, taps: Sequence[Any]
) -> tuple[Index, Expr | None]:
    """Index of a window that covers an element, one tap per dimension, and whether there is that window."""
    lead = index[: len(index) - len(axes)]
    place, mask = joined(
        [
            axis.window(position, tap, lowering.ranges)
            for axis, position, tap in zip(axes, index[len(lead) :], taps, strict=True)
        ]
    )
    return (*lead, *place), mask


# -- maximum --------------------------------------------------------------------------------------------------------


@rule("aten.max_pool2d_with_indices_backward.default", "aten.max_pool3d_with_indices_backward.default")
def max_pool_backward(
    lowering: Lowering,
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Gradients of windows to the elements that were their maxima."""
    axes = strided_windows(self, grad_output.sizes, kernel_size, stride, padding, dilation)
    return _max_backward(lowering, grad_output, self, indices, axes)


@rule("aten.adaptive_max_pool2d_backward.default", "aten.adaptive_max_pool3d_backward.default")
def adaptive_max_pool_backward(lowering: Lowering, grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """Gradients of evenly spread windows to the elements that were their maxima."""
    assert lowering.view is not None
    spatial = 2 if "pool2d" in lowering.view.op else 3
    return _max_backward(lowering, grad_output, self, indices, adaptive_windows(self, grad_output.sizes[-spatial:]))


def _max_backward(
    lowering: Lowering, grad_output: Tensor, tensor: Tensor, indices: Tensor, axes: Sequence[Windows]
) -> Tensor:
    taps = [axis.overlaps for axis in axes]
    if not is_unrolled(taps) or _is_quicker_scattered(lowering, taps):
        return to_saved_places(lowering, grad_output, indices, tensor.sizes, len(axes), "add")
    gradient, saved = addressable(lowering, grad_output), addressable(lowering, indices)
    plane = tuple(axis.size for axis in axes)
    zero = Constant(gradient.compute, 0.0 if gradient.dtype.is_floating_point else 0)

    def term(index: Index, choice: Sequence[Any]) -> Expr:
        place, mask = covering_windows(lowering, axes, index, choice)
        own = integer(flatten(index[len(index) - len(axes) :], plane))
        chosen = apply("eq", load(saved, place, mask=mask, other=-1), own)
        return apply("where", chosen, load(gradient, place, mask=mask), zero)

    return folded(lowering, "sum", tensor.sizes, gradient.dtype, taps, term)


def _is_quicker_scattered(lowering: Lowering, taps: Sequence[int]) -> bool:
    """Overlapping windows along contiguous rows of a CPU tensor.

    There a gather reads every saved index several times, at a distance; with channels innermost it reads whole vectors.
    """
    assert lowering.view is not None
    meta = lowering.view.tensor("grad_output")
    has_rows = meta is not None and meta.stride[-1] == 1 and meta.device.type == "cpu"
    return has_rows and sympy.prod(taps) > 1


def to_saved_places(
    lowering: Lowering, values: Tensor, indices: Tensor, sizes: Index, spatial: int, mode: Any, checked: bool = False
) -> Tensor:
    """Values written to saved row-major positions in their planes of a tensor that is zero elsewhere.

    Positions out of range are clamped into it, and told where they are ``checked``: eager looks at those of unpooling.
    """
    check_index(indices)
    lead = len(sizes) - spatial
    zero = Constant(values.compute, 0.0 if values.dtype.is_floating_point else 0)

    def destination(index: Index) -> tuple[Index, Bindings]:
        count = sympy.prod(sizes[lead:])
        symbol, bindings = run_time_index(lowering, indices.at(index), count, wrap=False, checked=checked)
        return (*index[:lead], *unflatten(symbol, sizes[lead:], lowering.ranges)), bindings

    return scattered(lowering, sizes, values.dtype, lambda _: zero, values.sizes, destination, values.at, mode)


@rule("aten.max_unpool2d.default", "aten.max_unpool3d.default")
def max_unpool(lowering: Lowering, self: Tensor, indices: Tensor, output_size: Sequence[Any], **_: Any) -> Tensor:
    """Values back at the places where pooling found them, zero elsewhere."""
    return to_saved_places(lowering, self, indices, lowering.output_sizes, len(output_size), "set", checked=True)


# -- average --------------------------------------------------------------------------------------------------------


@rule("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def avg_pool_backward(
    lowering: Lowering,
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Gradients of windows, shared by the elements they cover."""
    axes = strided_windows(self, grad_output.sizes, kernel_size, stride, padding)
    return _avg_backward(
        lowering,
        grad_output,
        self.sizes,
        axes,
        lambda windows: strided_divisor(axes, windows, count_include_pad, divisor_override),
    )


@rule("aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(lowering: Lowering, grad_output: Tensor, self: Tensor) -> Tensor:
    """Gradients of evenly spread windows, shared by the elements they cover."""
    assert lowering.view is not None
    spatial = 2 if "pool2d" in lowering.view.op else 3
    axes = adaptive_windows(self, grad_output.sizes[-spatial:])
    return _avg_backward(
        lowering, grad_output, self.sizes, axes, lambda windows: adaptive_divisor(lowering, axes, windows)
    )


def _avg_backward(
    lowering: Lowering,
    grad_output: Tensor,
    sizes: Index,
    axes: Sequence[Windows],
    divisor: Callable[[Index], sympy.Expr],
) -> Tensor:
    if not grad_output.dtype.is_floating_point:
        raise RefusedError("dtype", "gradients of an integer type")
    gradient = addressable(lowering, grad_output)

    def term(index: Index, choice: Sequence[Any]) -> Expr:
        place, mask = covering_windows(lowering, axes, index, choice)
        share = divided(lowering, load(gradient, place, mask=mask), divisor(place[len(place) - len(axes) :]))
        # Where there is no such window its number of positions may be anything, zero too.
        return share if mask is None else apply("where", mask, share, Constant(gradient.compute, 0.0))

    return folded(lowering, "sum", sizes, gradient.dtype, [axis.overlaps for axis in axes], term)
