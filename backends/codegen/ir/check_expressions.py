"""Checker of expressions: types, arity, symbols, and names of what is read.

Place: below the checkers of stages and kernels; they say what is known where an expression stands.
Invariants: every rule that the docstrings of ``scalar`` and ``indices`` state is checked here; all problems are noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.errors import Problems
from mixbackend.backends.codegen.ir.grammar import bound_symbols_of, index_expressions_of, walk
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.backends.codegen.ir.kernel import Store
from mixbackend.backends.codegen.ir.scalar import (
    SCALAR_OPS,
    Apply,
    Constant,
    Expr,
    IndexValue,
    Load,
    Local,
    Read,
    compute_dtype,
    kind_of,
)
from mixbackend.backends.codegen.ir.stages import Scatter
from mixbackend.backends.codegen.ir.text import type_text

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_COMPUTE_TYPES = (torch.float32, torch.float64, torch.bool, *INTEGERS)

MODE_KINDS = {"set": "fib", "add": "fi", "mul": "fi", "max": "fib", "min": "fib"}
SCAN_KINDS = {"sum": "fi", "prod": "fi", "max": "fib", "min": "fib", "logsumexp": "f"}
REDUCTION_KINDS = {
    "sum": "fi",
    "prod": "fi",
    "max": "fib",
    "min": "fib",
    "any": "b",
    "all": "b",
    "argmax": "fib",
    "argmin": "fib",
    "welford": "f",
    "dot": "f",
}


@dataclass(frozen=True)
class Scope:
    """What an expression may use.

    Attributes:
        problems: where to note what is wrong.
        excerpt: the stage or statement that the expression stands in.
        symbols: integer symbols with a value there.
        numbers: symbols of floating numbers.
        memory: storage type and rank of what may be read.
        names: type of each local value; ``None`` on stage level, where there are none.
    """

    problems: Problems
    excerpt: Any
    symbols: frozenset[sympy.Symbol]
    numbers: frozenset[sympy.Symbol]
    memory: Mapping[str, tuple[torch.dtype, int]]
    names: Mapping[str, torch.dtype] | None = None

    def expect(self, holds: bool, message: str) -> bool:
        """Note a problem unless a condition holds."""
        return self.problems.expect(holds, message, self.excerpt)


def check_expression(root: Expr, scope: Scope) -> None:
    """Check an expression and all its parts."""
    for node in walk(root):
        scope.expect(node.dtype in _COMPUTE_TYPES, f"{type_text(node.dtype)} is no compute type")
        match node:
            case Constant():
                check_number(node.value, node.dtype, scope)
            case IndexValue():
                _check_index_value(node, scope)
            case Load() if scope.names is None:
                _check_access(node.tensor, node, scope)
            case Read() if scope.names is not None:
                _check_access(node.buffer, node, scope)
            case Local() if scope.names is not None:
                known = scope.names.get(node.name)
                if scope.expect(known is not None, f"the local value {node.name} is not computed before its use"):
                    scope.expect(known == node.dtype, f"{node.name} is not of type {type_text(node.dtype)}")
            case Apply():
                _check_apply(node, scope)
            case _:
                scope.expect(False, f"{type(node).__name__} has no place on this level")


def check_number(value: Any, dtype: torch.dtype, scope: Scope) -> None:
    """Check that a number can be written in a type."""
    match kind_of(dtype):
        case "b":
            fits = isinstance(value, bool)
        case "f":
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        case _:
            limits = torch.iinfo(dtype) if dtype in INTEGERS else None
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            fits = is_integer and limits is not None and limits.min <= value <= limits.max
    scope.expect(fits, f"{value} is no {type_text(dtype)}")


def check_index(expression: Any, scope: Scope, bound: Iterable[sympy.Symbol] = ()) -> None:
    """Check that an index expression is made of known symbols and the functions that index expressions have."""
    if not scope.expect(isinstance(expression, sympy.Expr), f"{expression} is no index expression"):
        return
    known = scope.symbols.union(bound)
    for part in sympy.preorder_traversal(expression):
        if part.is_Symbol:
            scope.expect(part not in scope.numbers, f"the floating number {part} is part of an index")
            scope.expect(part in known or part in scope.numbers, f"the symbol {part} is not known here")
            continue
        is_power = part.is_Pow and part.exp.is_Integer and part.exp > 0
        is_known = part.is_Integer or part.is_Add or part.is_Mul or is_power
        is_known = is_known or part.func in (FloorDiv, Modulo, sympy.Min, sympy.Max)
        scope.expect(is_known, f"{part} is no index expression")


def check_kind(kind: str, table: Mapping[str, str], dtype: torch.dtype, scope: Scope) -> None:
    """Check that there is such a fold, scan or update, for a compute type."""
    if scope.expect(kind in table, f"there is no kind {kind}"):
        scope.expect(kind_of(dtype) in table[kind], f"{kind} is not defined for {type_text(dtype)}")


def check_fold(kind: str, value: Expr, results: int, scope: Scope) -> torch.dtype:
    """Check what is folded, and how many results there are; returns their compute type."""
    check_kind(kind, REDUCTION_KINDS, value.dtype, scope)
    if kind == "dot":
        check_product(value, scope)
    wanted = 2 if kind == "welford" else 1
    scope.expect(results == wanted, f"{kind} has {wanted} results, not {results}")
    return torch.int64 if kind in ("argmax", "argmin") else value.dtype


def check_product(value: Expr, scope: Scope) -> None:
    """Check that what a ``dot`` sums up is the product of two elements in memory."""
    factors = value.arguments if isinstance(value, Apply) and value.op == "mul" else ()
    plain = [item for item in factors if isinstance(item, (Load, Read)) and item.mask is None and not item.bindings]
    scope.expect(len(plain) == 2, "dot of something else than two elements in memory")


def check_place(node: Load | Read | Store | Scatter, scope: Scope) -> None:
    """Check where something is read or written. What computes bound symbols is checked with the other expressions."""
    symbols = bound_symbols_of(node)
    for symbol, value in node.bindings:
        scope.expect(symbol not in scope.symbols | scope.numbers, f"{symbol} is bound, and has a value already")
        scope.expect(kind_of(value.dtype) == "i", f"{symbol} is bound to {type_text(value.dtype)}, no integer")
    scope.expect(len(set(symbols)) == len(symbols), "a symbol is bound twice")
    for expression in index_expressions_of(node):
        check_index(expression, scope, symbols)
    scope.expect(node.mask is None or node.mask.dtype == torch.bool, "a mask is not bool")


def check_stored(value: torch.dtype, storage: torch.dtype, what: str, scope: Scope) -> None:
    """Check that a value has the compute type of where it goes."""
    message = f"{what} is stored as {type_text(storage)}, its value is {type_text(value)}"
    scope.expect(value == compute_dtype(storage), message)


def _check_index_value(node: IndexValue, scope: Scope) -> None:
    numbers = node.expression.free_symbols & scope.numbers if isinstance(node.expression, sympy.Expr) else set()
    if not numbers:
        check_index(node.expression, scope)
        return
    scope.expect(node.expression.is_Symbol, f"the floating number {node.expression} does not stand alone")
    scope.expect(node.dtype.is_floating_point, f"the floating number {node.expression} as {type_text(node.dtype)}")


def _check_access(name: str, node: Load | Read, scope: Scope) -> None:
    check_place(node, scope)
    if node.mask is not None:
        # 0 stands for the zero of every type.
        check_number(False if node.dtype == torch.bool and node.other == 0 else node.other, node.dtype, scope)
    known = scope.memory.get(name)
    if known is None:
        scope.expect(False, f"{name} is read, and not defined before")
        return
    dtype, rank = known
    wanted = compute_dtype(dtype)
    scope.expect(node.dtype == wanted, f"{name} is read as {type_text(node.dtype)}, its values are {type_text(wanted)}")
    count = len(index_expressions_of(node))
    scope.expect(count == rank, f"{name} has {rank} dimensions, it is read with {count}")


def _check_apply(node: Apply, scope: Scope) -> None:
    definition = SCALAR_OPS.get(node.op)
    if definition is None:
        scope.expect(False, f"there is no operator {node.op}")
        return
    count = len(node.arguments)
    if not scope.expect(count == definition.arity, f"{node.op} takes {definition.arity} arguments, it has {count}"):
        return
    arguments = node.arguments
    if node.op == "where":
        scope.expect(arguments[0].dtype == torch.bool, "the condition of where is not bool")
        arguments = arguments[1:]
    types = {argument.dtype for argument in arguments}
    named = ", ".join(sorted(map(type_text, types)))
    scope.expect(len(types) == 1, f"{node.op} of different types: {named}")
    scope.expect(all(kind_of(dtype) in definition.kinds for dtype in types), f"{node.op} is not defined for {named}")
    if definition.result == "bool":
        scope.expect(node.dtype == torch.bool, f"{node.op} gives bool, the node says {type_text(node.dtype)}")
    if definition.result == "same":
        scope.expect(types == {node.dtype}, f"{node.op} of {named}, the node says {type_text(node.dtype)}")
