"""Checker of kernels.

Place: after ``schedule`` has built a kernel, in tests and under debugging; targets may rely on what it checks.
Input: a kernel. Output: nothing, or one error with every violated rule of ``ir.kernel``.
Non-goals: races and offsets out of range; the interpreter finds those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.check_expressions import (
    MODE_KINDS,
    SCAN_KINDS,
    Scope,
    check_expression,
    check_fold,
    check_index,
    check_kind,
    check_place,
    check_stored,
)
from mixbackend.backends.codegen.ir.errors import Problems
from mixbackend.backends.codegen.ir.grammar import expressions_of, walk
from mixbackend.backends.codegen.ir.kernel import (
    Accumulate,
    BufferParameter,
    Carry,
    Kernel,
    KernelLoop,
    Let,
    Nest,
    Scratch,
    Statement,
    Store,
)
from mixbackend.backends.codegen.ir.scalar import Read
from mixbackend.backends.codegen.ir.text import listing


def check_kernel(kernel: Kernel) -> None:
    """Check a kernel.

    Raises:
        IrError: it breaks a rule.
    """
    _KernelCheck(kernel).run()


class _KernelCheck:
    """One check: which memory holds values so far, and what is wrong."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._problems = Problems()
        self._parameters = frozenset(kernel.parameters)
        self._numbers = frozenset(kernel.numbers)
        self._declared: tuple[BufferParameter | Scratch, ...] = (*kernel.buffers, *kernel.scratch)
        self._memory = {item.name: (item.dtype, 1) for item in self._declared}
        self._access = {item.name: item.access for item in kernel.buffers}
        self._scratch = {item.name for item in kernel.scratch}
        self._empty = {item.name for item in kernel.buffers if item.access == "write"} | self._scratch

    def run(self) -> None:
        self._declarations()
        self._loops(self._kernel.outer, (), "outer loops")
        for loop in self._kernel.outer:
            allowed = loop.mode in ("parallel", "serial", "unrolled")
            self._problems.expect(allowed, f"an outer loop is {loop.mode}", loop)
        for nest in self._kernel.nests:
            self._nest(nest)
        self._problems.raise_all("kernel")

    def _declarations(self) -> None:
        kernel = self._kernel
        names = [item.name for item in self._declared]
        self._problems.expect(len(set(names)) == len(names), "two buffers have one name", listing(names))
        symbols = [*kernel.parameters, *kernel.numbers]
        self._problems.expect(len(set(symbols)) == len(symbols), "two parameters have one symbol", listing(symbols))
        for item in kernel.buffers:
            self._problems.expect(item.access in ("read", "write", "update"), f"there is no access {item.access}", item)
        for scratch in kernel.scratch:
            check_index(scratch.elements, self._scope(scratch, ()))
        unknown = kernel.work.free_symbols - self._parameters
        self._problems.expect(not unknown, "work is made of more than parameters", f"work {kernel.work}")

    def _scope(
        self, excerpt: Any, symbols: Iterable[sympy.Symbol], names: dict[str, torch.dtype] | None = None
    ) -> Scope:
        known = self._parameters.union(symbols)
        return Scope(self._problems, excerpt, known, self._numbers, self._memory, {} if names is None else names)

    def _loops(self, loops: Sequence[KernelLoop], above: Iterable[sympy.Symbol], excerpt: Any) -> list[sympy.Symbol]:
        """Check loops below others; the indices of all of them."""
        known = list(above)
        for loop in loops:
            check_index(loop.extent, self._scope(loop, known))
            is_new = loop.index not in known and loop.index not in self._parameters | self._numbers
            self._problems.expect(is_new, f"the index {loop.index} is used twice", excerpt)
            fixed = loop.mode != "unrolled" or sympy.sympify(loop.extent).is_Integer
            self._problems.expect(fixed, "the extent of an unrolled loop is not constant", loop)
            known.append(loop.index)
        return known

    def _nest(self, nest: Nest) -> None:
        kept = self._loops(nest.loops, [loop.index for loop in self._kernel.outer], nest)
        inner = self._loops(nest.reduced, kept, nest)
        self._modes(nest)
        names: dict[str, torch.dtype] = {}
        results: dict[str, torch.dtype] = {}
        for statement in nest.body:
            self._statement(statement, nest, self._scope(statement, inner, names), names, results)
        finish = dict(results)
        for statement in nest.finish:
            allowed = isinstance(statement, (Let, Store))
            if self._problems.expect(allowed, f"{type(statement).__name__} has no place in finish", statement):
                self._statement(statement, nest, self._scope(statement, kept, finish), finish, results)
        self._problems.expect(bool(nest.reduced) or not nest.finish, "finish without reduced loops", nest)

    def _modes(self, nest: Nest) -> None:
        loops = (*nest.loops, *nest.reduced)
        self._problems.expect(all(loop.mode != "parallel" for loop in loops), "a parallel loop inside a nest", nest)
        vectors = [loop for loop in loops if loop.mode == "vector"]
        self._problems.expect(len(vectors) < 2, "a nest has two vector loops", nest)
        early = any(loop.mode == "vector" for loop in nest.reduced[:-1])
        self._problems.expect(not early, "the vector loop of reduced is not the innermost", nest)
        ordered = any(loop.mode == "ordered" for loop in nest.reduced)
        self._problems.expect(not ordered, "an ordered loop is reduced", nest)

    # -- statements -----------------------------------------------------------------------------------------------

    def _statement(
        self,
        statement: Statement,
        nest: Nest,
        scope: Scope,
        names: dict[str, torch.dtype],
        results: dict[str, torch.dtype],
    ) -> None:
        for expression in expressions_of(statement):
            check_expression(expression, scope)
            self._reads(expression, scope)
        dtype = statement.value.dtype
        match statement:
            case Let():
                self._name(statement.name, dtype, scope, names, results)
            case Accumulate():
                scope.expect(bool(nest.reduced), "a fold without reduced loops")
                result = check_fold(statement.kind, statement.value, len(statement.names), scope)
                for name in statement.names:
                    # Not among the names of the body: a fold has no value before it is finished.
                    self._name(name, result, scope, results, names)
            case Carry():
                ordered = sum(loop.mode == "ordered" for loop in nest.loops)
                scope.expect(ordered == 1 and not nest.reduced, "a carry needs one ordered loop, and nothing reduced")
                check_kind(statement.kind, SCAN_KINDS, dtype, scope)
                self._name(statement.name, dtype, scope, names, results)
            case Store():
                self._store(statement, scope)

    def _name(
        self,
        name: str,
        dtype: torch.dtype,
        scope: Scope,
        names: dict[str, torch.dtype],
        others: dict[str, torch.dtype],
    ) -> None:
        is_new = name not in names and name not in others and name not in self._memory
        scope.expect(is_new, f"the name {name} is used twice")
        names[name] = dtype

    def _reads(self, expression: Any, scope: Scope) -> None:
        for node in walk(expression):
            if isinstance(node, Read):
                scope.expect(node.buffer not in self._empty, f"{node.buffer} is read before this kernel wrote it")

    def _store(self, statement: Store, scope: Scope) -> None:
        check_place(statement, scope)
        name = statement.buffer
        if not scope.expect(name in self._memory, f"there is no buffer {name}"):
            return
        check_stored(statement.value.dtype, self._memory[name][0], name, scope)
        check_kind(statement.mode, MODE_KINDS, statement.value.dtype, scope)
        scope.expect(self._access.get(name) != "read", f"{name} is written, and declared as read")
        scope.expect(not (statement.atomic and name in self._scratch), f"an atomic store to the scratch {name}")
        fresh = name in self._empty and statement.mode != "set"
        scope.expect(not fresh, f"{name} is combined with before this kernel wrote it")
        self._empty.discard(name)
