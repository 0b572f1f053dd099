"""Rules of resizing by linear and cubic interpolation, and their gradients.

Place: registered by ``lower.table``.
Semantics: source positions and weights are computed in the compute type, as eager does; the result is continuous in
them, so rounding moves it by no more than rounding. Gradients are scattered with the same weights.
Non-goals: symbolic sizes of resized dimensions; torch decomposes these ops there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Bindings, Constant, Expr, IndexValue, apply
from mixbackend.backends.codegen.lower.access import added, addressable, integer, load, run_time_index
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.scatter import scattered
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

_LINEAR = ("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d")
_CUBIC = ("aten.upsample_bicubic2d",)
_SHARPNESS = -0.75

_Tap = tuple[sympy.Expr, Bindings, Expr]
"""Source position, meaning of its symbol, and weight."""

_Taps = Callable[[sympy.Expr], list[_Tap]]
"""What an element of the result is made of along one dimension."""


@dataclass(frozen=True)
class _Axis:
    """One resized dimension.

    Attributes:
        source, result: its sizes.
        scale: result over source if the caller gave it.
        align_corners: whether first and last elements of both fall together, instead of the borders.
        is_cubic: four taps instead of two.
        dtype: in which positions and weights are computed.
    """

    source: int
    result: int
    scale: float | None
    align_corners: bool
    is_cubic: bool
    dtype: torch.dtype

    @property
    def number(self) -> int:
        """How many taps an element has."""
        return 4 if self.is_cubic else 2

    def taps(self, lowering: Lowering, index: sympy.Expr) -> list[_Tap]:
        """What an element of the result is made of along this dimension."""
        position = self._position(lowering, index)
        whole = apply("minimum", apply("floor", position), self._constant(float(self.source - 1)))
        fraction = position - whole
        fraction = apply("minimum", apply("maximum", fraction, self._constant(0.0)), self._constant(1.0))
        start = lowering.cast(whole, torch.int64)
        offsets, weights = (
            (range(-1, 3), self._cubic(fraction)) if self.is_cubic else (range(2), self._linear(fraction))
        )
        taps = []
        for offset, weight in zip(offsets, weights, strict=True):
            place = start + integer(offset) if offset else start
            taps.append((*run_time_index(lowering, place, self.source, wrap=False, checked=False), weight))
        return taps

    def _position(self, lowering: Lowering, index: sympy.Expr) -> Expr:
        """Where the element lies in the source, in elements."""
        place, ratio = IndexValue(self.dtype, index), self._constant(self._ratio())
        if self.align_corners:
            return place * ratio
        if self.source == self.result and not self.is_cubic:
            # Eager takes equal sizes as such, whatever the scale says.
            return place
        half = self._constant(0.5)
        position = ratio * (place + half) - half
        return position if self.is_cubic else apply("maximum", position, self._constant(0.0))

    def _ratio(self) -> float:
        """Distance of neighbours in the source, rounded as eager does."""
        if self.align_corners:
            source, result = self.source - 1, self.result - 1
        else:
            source, result = self.source, self.result
        if result == 0:
            return 0.0
        if self.scale is not None and self.scale > 0.0 and not self.align_corners:
            return torch.tensor(1.0 / self.scale, dtype=self.dtype).item()
        return (torch.tensor(source, dtype=self.dtype) / torch.tensor(result, dtype=self.dtype)).item()

    def _linear(self, fraction: Expr) -> list[Expr]:
        return [self._constant(1.0) - fraction, fraction]

    def _cubic(self, fraction: Expr) -> list[Expr]:
        """Weights of the convolution kernel of Keys."""
        one = self._constant(1.0)
        rest = one - fraction
        return [
            self._outer(fraction + one),
            self._inner(fraction),
            self._inner(rest),
            self._outer(rest + one),
        ]

    def _inner(self, distance: Expr) -> Expr:
        """``((a + 2) x - (a + 3)) x^2 + 1`` for distances up to 1."""
        slope = self._constant(_SHARPNESS + 2.0) * distance
        bent = slope - self._constant(_SHARPNESS + 3.0)
        return bent * distance * distance + self._constant(1.0)

    def _outer(self, distance: Expr) -> Expr:
        """``((a x - 5 a) x + 8 a) x - 4 a`` for distances from 1 to 2."""
        value = self._constant(_SHARPNESS) * distance
        value = value - self._constant(5.0 * _SHARPNESS)
        value = value * distance + self._constant(8.0 * _SHARPNESS)
        return value * distance - self._constant(4.0 * _SHARPNESS)

    def _constant(self, value: float) -> Expr:
        return Constant(self.dtype, value)


def _axes(
    lowering: Lowering,
    tensor: Tensor,
    source: Index,
    result: Index,
    align_corners: bool,
    scales: dict[str, float | None],
) -> tuple[_Axis, ...]:
    """The resized dimensions, which are the last ones; scales are the op's last arguments, outermost first."""
    assert lowering.view is not None
    if not tensor.dtype.is_floating_point:
        raise RefusedError("dtype", f"interpolation of {tensor.dtype}")
    given, is_cubic = list(scales.values()), "cubic" in lowering.view.op
    resized = (source[-len(given) :], result[-len(given) :])
    if not all(size.is_Integer and size > 0 for size in itertools.chain(*resized)):
        raise RefusedError("dynamic-shape", f"resizing from {resized[0]} to {resized[1]}")
    return tuple(
        _Axis(int(before), int(after), scale, align_corners, is_cubic, tensor.compute)
        for before, after, scale in zip(*resized, given, strict=True)
    )


@rule(*(f"{name}.default" for name in (*_LINEAR, *_CUBIC)))
def upsample(
    lowering: Lowering, self: Tensor, output_size: Sequence[Any], align_corners: bool, **scales: float | None
) -> Tensor:
    """Weighted sums of neighbours: along all dimensions but the last, where they are whole rows, then along that.

    Taps of the last dimension are the same for every row: they are computed once, into memory.
    """
    source, sizes = addressable(lowering, self), lowering.output_sizes
    axes = _axes(lowering, self, self.sizes, sizes, align_corners, scales)
    *others, last = axes
    tables = _tables(lowering, last)
    if others and last.number * last.result >= last.source:
        # What is between is never rounded: it is as wide as it is computed.
        rows = _resized(lowering, source, (*sizes[:-1], self.sizes[-1]), self.compute, _taps(lowering, others), 1)
        return _resized(lowering, rows, sizes, self.dtype, [tables], 0)
    return _resized(lowering, source, sizes, self.dtype, [*_taps(lowering, others), tables], 0)


def _taps(lowering: Lowering, axes: Sequence[_Axis]) -> list[_Taps]:
    return [functools.partial(axis.taps, lowering) for axis in axes]


def _tables(lowering: Lowering, axis: _Axis) -> _Taps:
    """The taps of a dimension, read from tensors that hold them."""

    def position(tap: int, index: Index) -> Expr:
        symbol, bindings, _ = axis.taps(lowering, index[0])[tap]
        return dict(bindings)[symbol]  # type: ignore[index]

    def weight(tap: int, index: Index) -> Expr:
        return axis.taps(lowering, index[0])[tap][2]

    size = (sympy.Integer(axis.result),)
    pairs = [
        (
            lowering.map(size, torch.int64, functools.partial(position, tap)),
            lowering.map(size, axis.dtype, functools.partial(weight, tap)),
        )
        for tap in range(axis.number)
    ]

    def taps(index: sympy.Expr) -> list[_Tap]:
        found: list[_Tap] = []
        for positions, weights in pairs:
            symbol = lowering.bound_symbol(axis.source)
            found.append((symbol, ((symbol, positions.at((index,))),), weights.at((index,))))
        return found

    return taps


def _resized(
    lowering: Lowering, source: Tensor, sizes: Index, dtype: torch.dtype, taps: Sequence[_Taps], kept: int
) -> Tensor:
    """One stage that resizes dimensions; ``kept`` of them, which follow, stay as they are."""
    end = len(sizes) - kept
    lead = end - len(taps)

    def value(index: Index) -> Expr:
        found = [taps_at(position) for taps_at, position in zip(taps, index[lead:end], strict=True)]
        return _interpolated(source, index[:lead], (), found, index[end:])

    return lowering.map(sizes, dtype, value)


def _interpolated(
    source: Tensor, place: Index, bindings: Bindings, taps: Sequence[Sequence[_Tap]], rest: Index
) -> Expr:
    """Weighted sum over the taps of the dimensions between ``place`` and ``rest``."""
    if not taps:
        return load(source, (*place, *rest), bindings)
    terms = [
        weight * _interpolated(source, (*place, position), (*bindings, *binding), taps[1:], rest)
        for position, binding, weight in taps[0]
    ]
    return added(terms)


@rule(*(f"{name}_backward.default" for name in (*_LINEAR, *_CUBIC)))
def upsample_backward(
    lowering: Lowering,
    grad_output: Tensor,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    align_corners: bool,
    **scales: float | None,
) -> Tensor:
    """The gradient of every element, in shares, to the neighbours it was made of."""
    sizes, result = lowering.output_sizes, grad_output.sizes
    axes = _axes(lowering, grad_output, sizes, result, align_corners, scales)
    rank, lead = len(sizes), len(sizes) - len(axes)
    numbers = [axis.number for axis in axes]

    def chosen(index: Index, place: int) -> _Tap:
        """The tap of one dimension that the index's last part names, picked at run time."""
        taps = axes[place].taps(lowering, index[lead + place])
        number = integer(index[rank + place])
        positions = [dict(bindings)[symbol] for symbol, bindings, _ in taps]  # type: ignore[index]
        position, weight = positions[-1], taps[-1][2]
        for tap in reversed(range(len(taps) - 1)):
            is_it = apply("eq", number, integer(tap))
            position = apply("where", is_it, positions[tap], position)
            weight = apply("where", is_it, taps[tap][2], weight)
        return (*run_time_index(lowering, position, axes[place].source, wrap=False, checked=False), weight)

    def destination(index: Index) -> tuple[Index, Bindings]:
        taps = [chosen(index, place) for place in range(len(axes))]
        bindings = itertools.chain.from_iterable(binding for _, binding, _ in taps)
        return (*index[:lead], *(position for position, _, _ in taps)), tuple(bindings)

    def share(index: Index) -> Expr:
        value = grad_output.at(index[:rank])
        for place in range(len(axes)):
            value = value * chosen(index, place)[2]
        return value

    zero = Constant(grad_output.compute, 0.0)
    return scattered(lowering, sizes, grad_output.dtype, lambda _: zero, (*result, *numbers), destination, share, "add")
