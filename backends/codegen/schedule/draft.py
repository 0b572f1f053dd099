"""Drafts: kernels while they are being decided, and how their statements touch memory.

Place: what the passes of ``build`` take and return.
Invariants: a draft is a legal kernel at every step (see ``ir.kernel``), so that any of them may be interpreted. Offsets
are expanded sums, so that strides can be read off them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import bound_symbols_of, index_expressions_of, rewrite, walk
from mixbackend.backends.codegen.ir.kernel import Accumulate, Carry, KernelLoop, Let, Nest, Scratch, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Read
from mixbackend.backends.codegen.schedule.hints import Hints, points

Indices = Mapping[sympy.Symbol, sympy.Expr]


@dataclass(frozen=True)
class Draft:
    """A kernel without its list of parameters.

    Attributes:
        outer, nests, scratch: as in ``Kernel``.
        dtypes: storage type of every buffer and scratch.
        disjoint: buffers with stores in different nests that never meet (parts of a concatenation).
    """

    outer: tuple[KernelLoop, ...]
    nests: tuple[Nest, ...]
    scratch: tuple[Scratch, ...]
    dtypes: Mapping[str, torch.dtype]
    disjoint: frozenset[str] = frozenset()

    @property
    def scratch_names(self) -> frozenset[str]:
        """Names of all scratch."""
        return frozenset(item.name for item in self.scratch)


@dataclass(frozen=True)
class Access:
    """One touch of a buffer.

    Attributes:
        offset: in elements.
        write: a store, otherwise a read.
        dynamic: symbols that the position depends on in ways the offset does not show: those in bound values.
        finish: outside the innermost loops: once per kept point.
    """

    buffer: str
    offset: sympy.Expr
    write: bool
    dynamic: frozenset[sympy.Symbol] = frozenset()
    finish: bool = False

    def stride(self, index: sympy.Symbol) -> sympy.Expr | None:
        """Elements between neighbours along an index; ``None`` if there is no such number."""
        return None if index in self.dynamic else coefficient(self.offset, index)


def coefficient(expression: sympy.Expr, index: sympy.Symbol) -> sympy.Expr | None:
    """The factor of an index in an expanded expression; ``None`` if it is not linear in it."""
    total = sympy.Integer(0)
    for term in sympy.Add.make_args(expression):
        if index not in term.free_symbols:
            continue
        factor = term.coeff(index)
        if factor == 0 or index in factor.free_symbols or term != factor * index:
            return None
        total += factor
    return total


def largest_extent(loop: KernelLoop) -> sympy.Expr:
    """The extent of a loop where it is longest: a tile at outer index 0. Sizes are positive, indices are not."""
    return _largest(loop.extent)


def _largest(expression: sympy.Expr) -> sympy.Expr:
    """``Min(3, n + 1)`` of ``Min(3, n + 1 - i) - Max(0, 1 - i)``."""
    indices = [symbol for symbol in expression.free_symbols if not symbol.is_positive]
    if not indices:
        return expression
    if expression.is_nonpositive:
        return sympy.Integer(0)
    if expression.func in (sympy.Add, sympy.Min, sympy.Max):
        return expression.func(*map(_largest, expression.args))
    return expression.xreplace(dict.fromkeys(indices, sympy.Integer(0)))


def points_of(loops: Iterable[KernelLoop], hints: Hints) -> int:
    """Estimated number of points of loops."""
    return points((largest_extent(loop) for loop in loops), hints)


def on_buffers(nest: Nest, names: Mapping[str, str]) -> Nest:
    """The nest with what it reads and stores in buffers of other names; those without a new one keep theirs."""

    def moved(item: Any) -> Any:
        is_there = isinstance(item, (Read, Store)) and item.buffer in names
        return replace(item, buffer=names[item.buffer]) if is_there else item

    nest = rewrite(nest, moved)
    return replace(nest, body=tuple(map(moved, nest.body)), finish=tuple(map(moved, nest.finish)))


def indices_of(*wholes: Any) -> frozenset[sympy.Symbol]:
    """Every symbol that the index expressions of some nodes depend on, bound symbols left out."""
    if not wholes:
        return frozenset()
    nodes = (*wholes, *walk(*wholes))
    used = {symbol for node in nodes for part in index_expressions_of(node) for symbol in part.free_symbols}
    return frozenset(used).difference(*map(bound_symbols_of, nodes))


def accesses_of(statements: Iterable[Statement], finish: bool = False) -> tuple[Access, ...]:
    """Every distinct touch of memory, in order."""
    found: dict[Access, None] = {}
    for statement in statements:
        for node in walk(statement):
            if isinstance(node, Read):
                dynamic = indices_of(*(value for _, value in node.bindings))
                found[Access(node.buffer, node.offset, False, dynamic, finish)] = None
        if isinstance(statement, Store):
            dynamic = indices_of(*(value for _, value in statement.bindings))
            found[Access(statement.buffer, statement.offset, True, dynamic, finish)] = None
    return tuple(found)


def nest_accesses(nest: Nest) -> tuple[Access, ...]:
    """Every distinct touch of memory of a nest."""
    return (*accesses_of(nest.body), *accesses_of(nest.finish, finish=True))


def folds_positions(nest: Nest) -> bool:
    """Whether the order of the reduced loops is part of a result."""
    return any(isinstance(item, Accumulate) and item.kind in ("argmax", "argmin") for item in nest.body)


def has_carry(nest: Nest) -> bool:
    """Whether the nest folds along an ordered loop."""
    return any(isinstance(item, Carry) for item in nest.body)


def local_names(statements: Iterable[Statement]) -> tuple[str, ...]:
    """Names that statements define."""
    names: list[str] = []
    for statement in statements:
        if isinstance(statement, Accumulate):
            names.extend(statement.names)
        elif isinstance(statement, (Let, Carry)):
            names.append(statement.name)
    return tuple(names)
