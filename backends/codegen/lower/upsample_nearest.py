"""Rules of resizing by the nearest element, and its gradients.

Place: registered by ``lower.table``.
Semantics: eager finds the source of an element in floating point, and its kernels (by device, rank, type and layout) do
it each in its own way, so that rounding decides on borders. The tables of all these ways are computed; sizes for which
they differ are refused. Plain repetition becomes index arithmetic, all else runs one of the ways for every element.
Non-goals: symbolic sizes of resized dimensions; torch decomposes these ops there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import floor_div
from mixbackend.backends.codegen.ir.scalar import Bindings, Constant, Expr, IndexValue, apply
from mixbackend.backends.codegen.lower.access import addressable, load, run_time_index
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.scatter import scattered
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.windows import folded

_PLAIN = tuple(f"aten.upsample_nearest{rank}d" for rank in (1, 2, 3))
_EXACT = tuple(f"aten._upsample_nearest_exact{rank}d" for rank in (1, 2, 3))


@dataclass(frozen=True)
class _Axis:
    """One resized dimension.

    Attributes:
        source: its size before.
        ratio: source over result, in float32.
        shift: 0.5 if the centre of an element counts, 0 if its start.
        factor: how often every element is repeated, if that is all there is to it.
    """

    source: int
    ratio: float
    shift: float
    factor: int | None

    def place(self, lowering: Lowering, index: sympy.Expr) -> tuple[sympy.Expr, Bindings]:
        """Where an element of the result comes from."""
        if self.factor is not None:
            return floor_div(index, self.factor, lowering.ranges), ()
        wide = torch.float32
        moved = IndexValue(wide, index) + Constant(wide, self.shift)
        position = apply("floor", moved * Constant(wide, self.ratio))
        return run_time_index(lowering, lowering.cast(position, torch.int64), self.source, wrap=False, checked=False)


@functools.lru_cache(maxsize=1024)
def _axis(source: int, result: int, scale: float | None, is_exact: bool) -> _Axis:
    """One dimension.

    Raises:
        RefusedError: eager's kernels take different sources.
    """
    scale = scale if scale is not None and scale > 0.0 else None
    table, *others = _tables(source, result, scale, is_exact)
    if not all(torch.equal(table, other) for other in others):
        raise RefusedError("argument", f"eager's kernels disagree on the nearest of {source} for {result} elements")
    factor, rest = divmod(result, source)
    is_repetition = rest == 0 and torch.equal(table, torch.arange(result) // factor)
    ratio = _single_ratio(source, result, scale).item()
    return _Axis(source, ratio, 0.5 if is_exact else 0.0, factor if is_repetition else None)


def _single_ratio(source: int, result: int, scale: float | None) -> torch.Tensor:
    """Source over result in float32."""
    if scale is not None:
        return torch.tensor(1.0 / scale, dtype=torch.float32)
    return torch.tensor(source, dtype=torch.float32) / torch.tensor(result, dtype=torch.float32)


def _tables(source: int, result: int, scale: float | None, is_exact: bool) -> list[torch.Tensor]:
    """Source of every element in all the ways that eager has; the first is the one that this module runs."""
    places = torch.arange(result)
    double = torch.tensor(source / result if scale is None else 1.0 / scale, dtype=torch.float64)
    single = _single_ratio(source, result, scale)
    if not is_exact:
        ways = [places.float() * single, places.double() * double]
    else:
        centres, half = places.double() + 0.5, 0.5
        ways = [
            centres.float() * single,
            centres * single.double(),
            (centres.float() * single - half).clamp(min=0.0).double() + half,
            # The same with multiplication and subtraction rounded once.
            (centres * single.double() - half).float().clamp(min=0.0).double() + half,
            (centres * double - half).clamp(min=0.0) + half,
        ]
    tables = [way.float().floor().long().clamp(max=source - 1) for way in ways]
    if result in (source, 2 * source):
        tables.append(places // (result // source))
    return [*tables, _inverse_table(source, result, scale, is_exact)]


def _inverse_table(source: int, result: int, scale: float | None, is_exact: bool) -> torch.Tensor:
    """As gradients on NVIDIA hardware see it: from where on each source is taken."""
    ratio = _single_ratio(result, source, None if scale is None else 1.0 / scale)
    starts = (torch.arange(source, dtype=torch.float32) * ratio - (0.5 if is_exact else 0.0)).ceil().long()
    starts[0] = 0
    return torch.searchsorted(starts, torch.arange(result), right=True) - 1


def _axes(lowering: Lowering, source: Index, result: Index, scales: dict[str, float | None]) -> tuple[_Axis, ...]:
    """The resized dimensions, which are the last ones; scales are the op's last arguments, outermost first."""
    assert lowering.view is not None
    given, is_exact = list(scales.values()), "exact" in lowering.view.op
    resized = (source[-len(given) :], result[-len(given) :])
    if not all(size.is_Integer and size > 0 for size in itertools.chain(*resized)):
        raise RefusedError("dynamic-shape", f"resizing from {resized[0]} to {resized[1]}")
    return tuple(
        _axis(int(before), int(after), scale, is_exact) for before, after, scale in zip(*resized, given, strict=True)
    )


def _places(lowering: Lowering, axes: Sequence[_Axis], index: Index) -> tuple[Index, Bindings]:
    """Index of the source for an index of the result."""
    lead = index[: len(index) - len(axes)]
    places = [axis.place(lowering, position) for axis, position in zip(axes, index[len(lead) :], strict=True)]
    return (*lead, *(place for place, _ in places)), tuple(pair for _, pairs in places for pair in pairs)


@rule(*(f"{name}.default" for name in (*_PLAIN, *_EXACT)))
def upsample_nearest(lowering: Lowering, self: Tensor, output_size: Sequence[Any], **scales: float | None) -> Tensor:
    """Every element is the nearest of the source."""
    source, sizes = addressable(lowering, self), lowering.output_sizes
    axes = _axes(lowering, source.sizes, sizes, scales)
    return lowering.map(sizes, self.dtype, lambda index: load(source, *_places(lowering, axes, index)))


@rule(*(f"{name}_backward.default" for name in (*_PLAIN, *_EXACT)))
def upsample_nearest_backward(
    lowering: Lowering,
    grad_output: Tensor,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    **scales: float | None,
) -> Tensor:
    """Gradients of an element's copies added up: gathered where it is repeated, else scattered."""
    sizes, dtype = lowering.output_sizes, grad_output.dtype
    axes = _axes(lowering, sizes, grad_output.sizes, scales)
    factors = [axis.factor for axis in axes]
    lead = len(sizes) - len(axes)
    if None in factors:
        return scattered(
            lowering,
            sizes,
            dtype,
            lambda index: Constant(grad_output.compute, 0.0),
            grad_output.sizes,
            lambda index: _places(lowering, axes, index),
            grad_output.at,
            "add",
        )

    def copy(index: Index, taps: Sequence[Any]) -> Expr:
        places = zip(index[lead:], factors, taps, strict=True)
        return grad_output.at((*index[:lead], *(place * factor + tap for place, factor, tap in places)))

    return folded(lowering, "sum", sizes, dtype, factors, copy)
