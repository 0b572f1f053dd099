"""What the grammar says of nodes, against a search through everything that their fields hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import pytest
import sympy
from ir_samples import F32, I0, I1, I2, I64, KERNEL, NEST, V0, kernel_loop, load, loop, sizes

from mixbackend.backends.codegen.ir.grammar import (
    Iteration,
    Value,
    all_index_expressions,
    bound_symbols_of,
    expressions_of,
    loops_of,
    map_expressions,
    map_loops,
    reindex,
    rewrite,
    walk,
)
from mixbackend.backends.codegen.ir.kernel import Accumulate, Carry, Let, Nest, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Constant, IndexValue, Local, Read
from mixbackend.backends.codegen.ir.stages import (
    Concatenate,
    Map,
    Operand,
    Part,
    Reduce,
    Result,
    Scan,
    Scatter,
    Stage,
    Template,
)

LOOPS, REDUCED = (loop(I0, 3),), (loop(I1, 4),)
ROW = load("rows", I0, dtype=I64)
INSIDE = IndexValue(I64, I0) < 2
FOUND = load("x", V0, I1, bindings=((V0, ROW),), mask=INSIDE)
VALUE = (FOUND + IndexValue(F32, I0)) * FOUND
STAGES: tuple[Stage, ...] = (
    Map("y", LOOPS, VALUE),
    Concatenate("y", LOOPS, 0, (Part(*sizes(1, 0), VALUE), Part(*sizes(2, 1), -VALUE))),
    Reduce(("y",), LOOPS, REDUCED, "sum", VALUE),
    Scan("y", LOOPS, 0, "sum", VALUE),
    Scatter("y", (loop(I2, 5),), load("z", I2), LOOPS, (V0,), VALUE, "add", ((V0, ROW),), INSIDE),
    Template(
        "product",
        (Operand(LOOPS, load("x", I0)), None, Operand(REDUCED, load("z", I1 + 1))),
        (Result("y", (loop(I2, 5),), sizes(I2)),),
        (),
        finish=Local(F32, "result") * 2.0,
    ),
)
READ = Read(F32, "b0", V0 + I1, ((V0, Read(I64, "b1", I0)),), INSIDE)
STATEMENTS: tuple[Statement, ...] = (
    Let("t0", READ + 1.0),
    Store("b2", I0 + V0, READ * READ, "add", ((V0, Read(I64, "b1", I0)),), INSIDE),
    Accumulate(("a0",), "sum", READ),
    Carry("c0", "sum", READ),
)
NESTS = (NEST, Nest((kernel_loop(I0, 3),), (), STATEMENTS))
WHOLES = (*STAGES, *STATEMENTS, *NESTS, KERNEL)


def _held(node: Any, kind: Any, inside: tuple[type, ...] = ()) -> Iterator[Any]:
    """Everything of a kind in the fields of a node, as far down as there is something that is none of ``inside``."""
    if isinstance(node, kind):
        yield node
    if isinstance(node, tuple):
        for item in node:
            yield from _held(item, kind, inside)
    elif is_dataclass(node) and not isinstance(node, inside):
        for item in fields(node):
            yield from _held(getattr(node, item.name), kind, inside)


def test_the_samples_have_a_node_of_every_kind() -> None:
    assert {type(stage) for stage in STAGES} == set(get_args(Stage))
    assert {type(statement) for statement in STATEMENTS} == set(get_args(Statement))


@pytest.mark.parametrize("whole", WHOLES, ids=lambda whole: type(whole).__name__)
def test_walks_find_what_a_search_of_all_fields_finds(whole: Any) -> None:
    values = list(walk(whole))
    assert len(values) == len(set(values))
    assert set(values) == set(_held(whole, Value))
    for place, value in enumerate(values):
        assert set(expressions_of(value)) <= set(values[:place]), "a part comes after its whole"
    assert list(loops_of(whole)) == list(_held(whole, Iteration, (Value,)))
    bound = {symbol for node in (whole, *values) for symbol in bound_symbols_of(node)}
    assert bound == ({V0} if V0 in set(_held(whole, sympy.Symbol)) else set())


@pytest.mark.parametrize("whole", WHOLES, ids=lambda whole: type(whole).__name__)
def test_what_changes_nothing_makes_nothing(whole: Any) -> None:
    assert map_expressions(whole, lambda value: value) is whole
    assert rewrite(whole, lambda node: node) is whole
    assert reindex(whole, lambda expression: expression) is whole
    assert map_loops(whole, lambda loops: loops) is whole


@pytest.mark.parametrize("whole", WHOLES, ids=lambda whole: type(whole).__name__)
def test_all_parts_are_replaced(whole: Any) -> None:
    # The place of an operand is a tensor in memory; of everything else any value will do.
    constant = load("other", 0) if isinstance(whole, Template) else Constant(F32, 7.0)
    assert set(expressions_of(map_expressions(whole, lambda _: constant))) == {constant}
    moved = reindex(whole, lambda expression: expression + 100)
    before, after = list(all_index_expressions(whole)), list(all_index_expressions(moved))
    assert before
    assert set(after) == {expression + 100 for expression in before}
    assert loops_of(map_loops(whole, lambda loops: loops[:0])) == ()


def test_equal_parts_are_rewritten_once() -> None:
    seen = []
    rewrite(VALUE, lambda node: seen.append(node) or node)
    assert seen == list(walk(VALUE))
