"""Sizes: what a call's inputs tell of a region's symbolic sizes.

Place: below ``execute.region_executor``. Input: a region, the arguments of one call. Output: run
functions that depend on sizes; the classes of all sizes that its inputs show. A class is a power of two: sizes of one
class differ by less than a factor of two, so that what was checked at one of them speaks for the others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import sympy

from mixbackend.contracts import Condition, Region, Size, SymbolicSize, TensorMeta, ValueMeta
from mixbackend.contracts.region_grammar import SymbolNames, write_value
from mixbackend.execute.run_function import Run

Sizes = tuple[int, ...]
"""The class of each symbolic size, in the order in which the inputs show them; empty where all sizes are known."""

SizeReader = Callable[[Sequence[Any]], int]
SizesReader = Callable[[Sequence[Any]], tuple[int, ...]]

_REMEMBERED = 64
"""Values of symbols for which it is known what sizes are made of them."""


def size_classes(region: Region) -> Callable[[Sequence[Any]], Sizes]:
    """Reads the classes of a call's sizes: none where no input has a symbolic one."""
    classes: Callable[[Sequence[Any]], Sizes] = eval(f"lambda inputs: ({_classes(region)})")
    return classes


def by_sizes(region: Region, known: Collection[Sizes], at_known: Run, at_others: Run) -> Run:
    """Calls one function where the classes of sizes are known, and another where they are not."""
    if not _classes(region):
        return at_known
    # As text, since it is asked in every call of a region.
    text = f"lambda inputs: at_known(inputs) if ({_classes(region)}) in known else at_others(inputs)"
    call: Run = eval(text, {"known": known, "at_known": at_known, "at_others": at_others})
    return call


def admitted(region: Region, conditions: Sequence[Condition], run: Run, otherwise: Run) -> Run:
    """Calls one function where all conditions on sizes hold, and another where they do not."""
    if not conditions:
        return run
    read = [(size_reader(region, condition), condition) for condition in conditions]

    def admitting(inputs: list[Any]) -> Sequence[Any]:
        for size_of, condition in read:
            if not condition.holds(size_of(inputs)):
                return otherwise(inputs)
        return run(inputs)

    return admitting


def in_sizes_of(
    region: Region, conditions: Sequence[Condition], inputs: Sequence[ValueMeta] | None
) -> tuple[Condition, ...]:
    """Conditions on the sizes of an equal region, which shares its code, in those of this one.

    Args:
        inputs: what enters the equal region; ``None`` if it is this one.
    """
    if inputs is None or not conditions:
        return tuple(conditions)
    theirs, mine = SymbolNames(), SymbolNames()
    for meta, item in zip(inputs, region.inputs, strict=True):
        write_value(meta, theirs)
        write_value(item.meta, mine)
    known = {name: symbol for symbol, name in mine.names.items()}
    renamed = {symbol: known[name] for symbol, name in theirs.names.items()}
    return tuple(
        replace(item, size=replace(item.size, expression=item.size.expression.xreplace(renamed)))
        if isinstance(item.size, SymbolicSize)
        else item
        for item in conditions
    )


def _classes(region: Region) -> str:
    return "".join(f"{text}.bit_length(), " for text in _shown(region).values())


def shown_by_inputs(region: Region, wanted: sympy.Expr) -> str:
    """Python text that reads a size off ``inputs``, where one of them shows it as it is; empty if none does."""
    return _shown(region).get(wanted, "")


def _shown(region: Region) -> dict[sympy.Expr, str]:
    """Python text for every size that an input shows; nothing but places and axes is in it."""
    found: dict[sympy.Expr, str] = {}
    for place, item in enumerate(region.inputs):
        if isinstance(item.meta, SymbolicSize):
            found.setdefault(item.meta.expression, f"inputs[{place}]")
    for place, item in enumerate(region.inputs):
        for axis, size in enumerate(item.meta.shape if isinstance(item.meta, TensorMeta) else ()):
            if isinstance(size, SymbolicSize):
                found.setdefault(size.expression, f"inputs[{place}].size({axis})")
    return found


def size_reader(region: Region, condition: Condition) -> SizeReader:
    """How to read a condition's size from the arguments.

    Raises:
        ValueError: no inputs show what this size is made of.
    """
    if not isinstance(condition.size, SymbolicSize):
        constant = condition.size
        return lambda inputs: constant
    found = _shown(region)
    if condition.size.expression in found:
        return _reader(found[condition.size.expression])
    read = sizes_reader(region, (condition.size,))
    if read is None:
        raise ValueError(f"no input of region {region.id} shows the size of the precondition {condition}")
    return lambda inputs: read(inputs)[0]


def sizes_reader(region: Region, sizes: Sequence[Size]) -> SizesReader | None:
    """How to tell sizes from the arguments; ``None`` where no input shows what one of them is made of."""
    expressions = [sympy.sympify(size.expression if isinstance(size, SymbolicSize) else size) for size in sizes]
    symbols = sorted(frozenset[sympy.Symbol]().union(*(item.free_symbols for item in expressions)), key=str)
    found = _shown(region)
    if any(symbol not in found for symbol in symbols):
        return None

    @functools.lru_cache(maxsize=_REMEMBERED)
    def sizes_at(values: tuple[int, ...]) -> tuple[int, ...]:
        known = dict(zip(symbols, map(sympy.Integer, values), strict=True))
        return tuple(int(item.xreplace(known)) for item in expressions)

    read: SizesReader = eval(f"lambda inputs: ({''.join(f'{found[symbol]}, ' for symbol in symbols)})")
    return lambda inputs: sizes_at(read(inputs))


def _reader(text: str) -> SizeReader:
    reader: SizeReader = eval(f"lambda inputs: {text}")
    return reader
