"""Forward: a value read where it was just computed is a name, not memory; scratch that is not read is removed.

Place: in ``build``, after nests were merged and again after hoisting. Input, output: a draft.
Before and after::

    t[0] = a + b; y[i] = t[0] * 2      ->      let v = a + b; y[i] = v * 2

Invariants: a forwarded value is what memory would have given back: rounded to the storage type.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import sympy

from mixbackend.backends.codegen.ir.grammar import rewrite, walk
from mixbackend.backends.codegen.ir.kernel import Accumulate, Let, Nest, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, Local, Read, apply, as_stored
from mixbackend.backends.codegen.schedule.draft import Draft

Position = tuple[str, sympy.Expr]


def forward_values(draft: Draft) -> Draft:
    """Replace reads of what the same point stored before, then drop what is no longer read."""
    names = (f"%v{number}" for number in itertools.count(_named_values(draft)))
    nests = tuple(
        replace(nest, body=_forward(nest.body, draft, names), finish=_forward(nest.finish, draft, names))
        for nest in draft.nests
    )
    return drop_unused(replace(draft, nests=nests))


def drop_unused(draft: Draft) -> Draft:
    """Remove scratch that is never read, and what was computed for it alone."""
    while True:
        read = {node.buffer for node in walk(*draft.nests) if isinstance(node, Read)}
        unread = draft.scratch_names - read
        nests = tuple(nest for nest in (_without(nest, unread) for nest in draft.nests) if nest.body or nest.finish)
        if nests == draft.nests and not unread:
            return draft
        draft = replace(draft, nests=nests, scratch=tuple(item for item in draft.scratch if item.name in read))


def _named_values(draft: Draft) -> int:
    return sum(1 for nest in draft.nests for item in (*nest.body, *nest.finish) if isinstance(item, Let))


def _forward(statements: Iterable[Statement], draft: Draft, names: Iterator[str]) -> tuple[Statement, ...]:
    pending = list(statements)
    read_later = [_read_positions(pending[place + 1 :]) for place in range(len(pending))]
    known: dict[Position, Expr] = {}
    result: list[Statement] = []
    for statement, later in zip(pending, read_later, strict=True):
        statement = _with_known(statement, known)
        if not isinstance(statement, Store):
            result.append(statement)
            continue
        known = {position: value for position, value in known.items() if position[0] != statement.buffer}
        position = (statement.buffer, statement.offset)
        if position in later and statement.mode == "set" and statement.mask is None and not statement.bindings:
            value = as_stored(statement.value, draft.dtypes[statement.buffer])
            if not isinstance(value, (Local, Constant)):
                name = next(names)
                result.append(Let(name, value))
                value = Local(value.dtype, name)
            known[position] = value
            statement = replace(statement, value=value)
        result.append(statement)
    return tuple(result)


def _read_positions(statements: Iterable[Statement]) -> set[Position]:
    return {(node.buffer, node.offset) for node in walk(*statements) if isinstance(node, Read) and _is_static(node)}


def _is_static(node: Expr) -> bool:
    return isinstance(node, Read) and not node.bindings


def _with_known(statement: Statement, known: dict[Position, Expr]) -> Statement:
    return rewrite(statement, lambda node: _known_value(node, known))


def _known_value(node: Expr, known: dict[Position, Expr]) -> Expr:
    if not isinstance(node, Read) or node.bindings or (node.buffer, node.offset) not in known:
        return node
    value = known[node.buffer, node.offset]
    if node.mask is None:
        return value
    return apply("where", node.mask, value, Constant(value.dtype, node.other), dtype=value.dtype)


# -- what is not read ---------------------------------------------------------------------------------------------


def _without(nest: Nest, unread: frozenset[str]) -> Nest:
    """The nest without stores into unread scratch and without names that nothing uses."""
    kept = [item for item in (*nest.body, *nest.finish) if not (isinstance(item, Store) and item.buffer in unread)]
    used = {node.name for node in walk(*kept) if isinstance(node, Local)}

    def stays(item: Statement) -> bool:
        if isinstance(item, Store):
            return item.buffer not in unread
        if isinstance(item, Accumulate):
            return not used.isdisjoint(item.names)
        return item.name in used

    made = replace(nest, body=tuple(filter(stays, nest.body)), finish=tuple(filter(stays, nest.finish)))
    if made.finish or any(isinstance(item, Accumulate) for item in made.body):
        return made
    return replace(made, loops=(*made.loops, *made.reduced), reduced=())
