"""Optimisation profiles: for which sizes an engine of a region with symbolic sizes is built.

Place: between a prepared region and ``building``. Input: the tensors that enter. Output: profiles, and the conditions
on sizes under which they serve a call.
Sizes without an upper bound are served up to ``REACH`` times what was captured: an engine plans its memory for the
largest. Where the range is wide there are two profiles: one around what was captured, which is tried first, and one for
all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy

from mixbackend.backends.common.onnx import LoweringError
from mixbackend.backends.tensorrt.model import Entrance
from mixbackend.contracts import Condition, SymbolicSize, hint_of

REACH = 4
"""Sizes without bound are served up to so many times their hint."""
_WIDE = 4
"""A range has a profile of its own around the hint if its largest size is more than so many times its least."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """Per entrance with symbolic sizes its name and its least, usual and largest shape."""

    shapes: tuple[tuple[str, Shape, Shape, Shape], ...]

    def serves(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether tensors of these shapes lie within it."""
        return all(
            all(low <= size <= high for low, size, high in zip(least, shapes[name], largest, strict=True))
            for name, least, _, largest in self.shapes
        )


@dataclass(frozen=True, slots=True)
class _Range:
    least: int
    usual: int
    largest: int

    def near(self) -> _Range:
        return _Range(max(self.least, self.usual // 2), self.usual, min(self.largest, self.usual * 2))


def profiles(entrances: Sequence[Entrance]) -> tuple[Profile, ...]:
    """Profiles in the order in which they are tried; none for a region of known sizes.

    Raises:
        LoweringError: a size is no function of the others that grows with them.
    """
    ranges = _ranges(entrances)
    if not ranges:
        return ()
    whole = _profile(entrances, ranges)
    if all(item.largest <= _WIDE * item.least for item in ranges.values()):
        return (whole,)
    return _profile(entrances, {symbol: item.near() for symbol, item in ranges.items()}), whole


def conditions(entrances: Sequence[Entrance]) -> tuple[Condition, ...]:
    """What the sizes of a call must fulfil, beyond what always holds."""
    found: dict[Condition, None] = {}
    for entrance, least, largest in _bounds(entrances):
        for size, low, high in zip(entrance.shape, least, largest, strict=True):
            if not isinstance(size, SymbolicSize):
                continue
            if size.lower < low:
                found[Condition(size, "at_least", low)] = None
            if size.upper is None or size.upper > high:
                found[Condition(size, "at_most", high)] = None
    return tuple(found)


def _bounds(entrances: Sequence[Entrance]) -> Iterator[tuple[Entrance, Shape, Shape]]:
    ranges = _ranges(entrances)
    by_name = {entrance.name: entrance for entrance in entrances}
    for name, least, _, largest in _profile(entrances, ranges).shapes:
        yield by_name[name], least, largest


def _ranges(entrances: Sequence[Entrance]) -> dict[sympy.Symbol, _Range]:
    """By symbol; those that no size shows by itself have a range around one."""
    sizes = [size for entrance in entrances for size in entrance.shape if isinstance(size, SymbolicSize)]
    alone = {size.expression: size for size in sizes if size.expression.is_Symbol}
    missing = {symbol for size in sizes for symbol in size.expression.free_symbols} - set(alone)
    if missing:
        raise LoweringError(f"no tensor that enters has the size {', '.join(sorted(map(str, missing)))} by itself")
    return {symbol: _range(size) for symbol, size in alone.items()}


def _range(size: SymbolicSize) -> _Range:
    usual = max(1, hint_of(size))
    largest = REACH * usual if size.upper is None else min(size.upper, REACH * usual)
    return _Range(min(max(1, size.lower), usual), usual, max(largest, usual))


def _profile(entrances: Sequence[Entrance], ranges: Mapping[sympy.Symbol, _Range]) -> Profile:
    shapes = []
    for entrance in entrances:
        if not any(isinstance(size, SymbolicSize) for size in entrance.shape):
            continue
        least, usual, largest = (_shape(entrance, ranges, which) for which in ("least", "usual", "largest"))
        # A size that is zero at the least of its symbols is not served.
        least = tuple(max(1, size) for size in least)
        if not all(low <= mid <= high for low, mid, high in zip(least, usual, largest, strict=True)):
            raise LoweringError(f"the sizes of {entrance.name} do not grow with the symbols they are made of")
        shapes.append((entrance.name, least, usual, largest))
    return Profile(tuple(shapes))


def _shape(entrance: Entrance, ranges: Mapping[sympy.Symbol, _Range], which: str) -> Shape:
    values = {symbol: sympy.Integer(getattr(item, which)) for symbol, item in ranges.items()}
    return tuple(
        int(size.expression.xreplace(values)) if isinstance(size, SymbolicSize) else size for size in entrance.shape
    )
