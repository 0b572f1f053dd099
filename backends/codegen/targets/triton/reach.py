"""Reach: how far the indices of a kernel go, and values made of them, which says whether 32 bits are enough.

Place: after ``specialised``, before ``plan``. Input: a specialised kernel. Output: bounds, numbers or expressions over
the parameters that are left: sizes are known when a kernel is launched, and the code for 64 bits is taken where 32 do
not suffice. No size is guarded.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from mixbackend.backends.codegen.ir.grammar import loops_of, walk
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, Ranges, upper_bound
from mixbackend.backends.codegen.ir.kernel import Kernel, Nest
from mixbackend.backends.codegen.ir.scalar import IndexValue
from mixbackend.backends.codegen.schedule.draft import nest_accesses
from mixbackend.backends.codegen.targets.triton.limits import LARGEST_INDEX

Bounds = tuple[sympy.Expr, ...]

_COMPUTED = (sympy.Add, sympy.Mul, sympy.Pow, FloorDiv, Modulo)


def reach_of(kernel: Kernel) -> Bounds | None:
    """What no index, no value of one, no number of points and no parameter exceeds; ``None`` where unknown."""
    bounds: list[sympy.Expr | None] = [*kernel.parameters, sympy.Mul(*(loop.extent for loop in kernel.outer))]
    for nest in kernel.nests:
        loops = loops_of(nest)
        ranges = {loop.index: loop.extent for loop in (*kernel.outer, *loops)}
        bounds.append(sympy.Mul(*(loop.extent for loop in loops)))
        bounds += [_highest(access.offset, ranges) for access in nest_accesses(nest)]
        bounds += [_magnitude(value, ranges) for value in _values(nest) if value not in kernel.numbers]
    found = dict.fromkeys(item for item in bounds if item is not None)
    if len(found) < len(set(bounds)) or not all(map(_is_computed, found)):
        return None
    return tuple(found)


def needs_wide(bounds: Bounds | None) -> bool:
    """Whether indices have 64 bits whatever the parameters are."""
    return bounds is None or any(item.is_Integer and int(item) > LARGEST_INDEX for item in bounds)


def elements_of(kernel: Kernel) -> dict[str, sympy.Expr | None]:
    """For every buffer how many elements the kernel touches at most; ``None`` where only values tell."""
    found: dict[str, sympy.Expr | None] = {}
    for nest in kernel.nests:
        ranges = {loop.index: loop.extent for loop in (*kernel.outer, *loops_of(nest))}
        for access in nest_accesses(nest):
            known = found.get(access.buffer, sympy.Integer(0))
            bound = access.offset.free_symbols - ranges.keys() - set(kernel.parameters)
            highest = None if bound else _highest(access.offset, ranges)
            found[access.buffer] = None if known is None or highest is None else sympy.Max(known, highest + 1)
    return found


def _highest(offset: sympy.Expr, ranges: Ranges) -> sympy.Expr | None:
    """The sum of what the terms of an offset are at most; values bound at run time are 64 bits wide anyway."""
    total = sympy.Integer(0)
    for term in sympy.Add.make_args(sympy.expand(offset)):
        if any(symbol.name.startswith("v") for symbol in term.free_symbols - ranges.keys()):
            continue
        highest = upper_bound(-term if term.could_extract_minus_sign() else term, ranges)
        if highest is None:
            return None
        total += highest
    return sympy.expand(total)


def _values(nest: Nest) -> Iterator[sympy.Expr]:
    """Indices that are computed with as numbers."""
    return (node.expression for node in walk(nest) if isinstance(node, IndexValue))


def _magnitude(value: sympy.Expr, ranges: Ranges) -> sympy.Expr:
    """What neither a value nor any part of it exceeds, whatever its sign."""
    if value.is_Integer:
        return abs(value)
    if value.is_Symbol:
        return ranges[value] - 1 if value in ranges else value
    parts = [_magnitude(part, ranges) for part in value.args]
    if value.is_Mul:
        return sympy.expand(sympy.Mul(*parts))
    if value.is_Pow:
        return sympy.expand(parts[0] ** value.args[1])
    return sympy.expand(sympy.Add(*parts))


def _is_computed(bound: sympy.Expr) -> bool:
    """Whether Python text of it is at hand."""
    return all(part.is_Atom or isinstance(part, _COMPUTED) for part in sympy.preorder_traversal(bound))
