"""Canonical kernels: names in order of appearance, sizes and strides as parameters.

Place: inside ``assemble``, after a kernel was built with the names of its graph.
Input: a kernel in terms of tensors and sizes. Output: an equal computation with a text that depends on neither, and the
values that its parameters take here. So layers of different widths share one compiled kernel, and so do all values of a
symbolic size.
Invariants: constants that shape the code stay: unrolled extents, small strides, divisors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import sympy

from mixbackend.backends.codegen.ir.grammar import rewrite
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.backends.codegen.ir.kernel import (
    Accumulate,
    AnyKernel,
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
from mixbackend.backends.codegen.ir.scalar import Expr, IndexValue, Local, Read, compute_dtype

LARGEST_CONSTANT = 8
"""Integers up to this stay in the code: strides of windows, lengths of small loops."""


@dataclass(frozen=True)
class CanonicalKernel:
    """A kernel and what its names stand for.

    Attributes:
        kernel: in canonical form.
        buffers: original name of each of its buffers.
        parameters: value of each of its parameters.
        numbers: symbol of each of its floating numbers.
    """

    kernel: AnyKernel
    buffers: tuple[str, ...]
    parameters: tuple[sympy.Expr, ...]
    numbers: tuple[sympy.Symbol, ...]


def canonical(kernel: Kernel) -> CanonicalKernel:
    """Bring a kernel into canonical form."""
    return _Canonicalizer(kernel).run()


@dataclass
class _Canonicalizer:
    kernel: Kernel
    _indices: dict[sympy.Symbol, sympy.Symbol] = field(default_factory=dict)
    _memory: dict[str, str] = field(default_factory=dict)
    _locals: dict[str, str] = field(default_factory=dict)
    _parameters: dict[tuple[sympy.Expr, bool], sympy.Symbol] = field(default_factory=dict)
    _compares: bool = False
    _numbers: dict[sympy.Symbol, sympy.Symbol] = field(default_factory=dict)

    def run(self) -> CanonicalKernel:
        kernel = self.kernel
        for number, buffer in enumerate(kernel.buffers):
            self._memory[buffer.name] = f"b{number}"
        for number, piece in enumerate(kernel.scratch):
            self._memory[piece.name] = f"s{number}"
        self._name_indices()
        scratch = tuple(Scratch(self._memory[s.name], s.dtype, self._size(s.elements)) for s in kernel.scratch)
        outer = tuple(map(self._loop, kernel.outer))
        nests = tuple(map(self._nest, kernel.nests))
        work = self._parameter(kernel.work) if not kernel.work.is_Symbol else self._size(kernel.work)
        buffers = tuple(BufferParameter(self._memory[b.name], b.dtype, b.access) for b in kernel.buffers)
        made = Kernel(
            parameters=tuple(self._parameters.values()),
            numbers=tuple(self._numbers.values()),
            buffers=buffers,
            scratch=scratch,
            outer=outer,
            nests=nests,
            work=work,
        )
        names = tuple(buffer.name for buffer in kernel.buffers)
        return CanonicalKernel(made, names, tuple(value for value, _ in self._parameters), tuple(self._numbers))

    def _name_indices(self) -> None:
        loops = [*self.kernel.outer, *(loop for nest in self.kernel.nests for loop in (*nest.loops, *nest.reduced))]
        for number, loop in enumerate(loops):
            self._indices[loop.index] = _symbol(f"j{number}")

    # -- index expressions ----------------------------------------------------------------------------------------

    def _parameter(self, value: sympy.Expr) -> sympy.Symbol:
        """The symbol of a value: positive by declaration, but for one that ``Min`` or ``Max`` compares, which would be
        taken for the other side's better or worse: there it is what is known of the value."""
        doubtful = self._compares and not value.is_positive
        if (value, doubtful) not in self._parameters:
            known = {"nonnegative": value.is_nonnegative} if doubtful else {"positive": True}
            self._parameters[value, doubtful] = sympy.Symbol(f"p{len(self._parameters)}", integer=True, **known)
        return self._parameters[value, doubtful]

    def _size(self, expression: sympy.Expr) -> sympy.Expr:
        """An expression with canonical indices, and what does not depend on them as parameters."""
        return self._parts(expression.xreplace(self._indices))

    def _parts(self, expression: sympy.Expr) -> sympy.Expr:
        if expression.is_Integer and abs(int(expression)) <= LARGEST_CONSTANT:
            return expression
        canonical_indices = set(self._indices.values())
        if not expression.free_symbols & canonical_indices:
            return self._signed(expression)
        if expression.is_Symbol:
            return expression
        if expression.is_Mul:
            factors = [part for part in expression.args if not part.free_symbols & canonical_indices]
            others = [part for part in expression.args if part.free_symbols & canonical_indices]
            return sympy.Mul(self._parts(sympy.Mul(*factors)), *map(self._parts, _ordered(others)))
        if expression.func in (FloorDiv, Modulo):
            return expression.func(self._parts(expression.args[0]), self._divisor(expression.args[1]))
        before, self._compares = self._compares, self._compares or expression.func in (sympy.Min, sympy.Max)
        parts = [self._parts(part) for part in _ordered(expression.args)]
        self._compares = before
        return expression.func(*parts)

    def _signed(self, value: sympy.Expr) -> sympy.Expr:
        """A negative stride is minus its parameter."""
        if value.could_extract_minus_sign():
            return -self._parameter(-value)
        return self._parameter(value)

    def _divisor(self, value: sympy.Expr) -> sympy.Expr:
        return value if value.is_Integer else self._parts(value)

    def _loop(self, loop: KernelLoop) -> KernelLoop:
        unrolled = loop.mode == "unrolled" and loop.extent.is_Integer
        extent = loop.extent if unrolled else self._size(loop.extent)
        return KernelLoop(self._indices[loop.index], extent, loop.mode)

    # -- statements -----------------------------------------------------------------------------------------------

    def _nest(self, nest: Nest) -> Nest:
        self._locals.clear()
        return Nest(
            loops=tuple(map(self._loop, nest.loops)),
            reduced=tuple(map(self._loop, nest.reduced)),
            body=tuple(map(self._statement, nest.body)),
            finish=tuple(map(self._statement, nest.finish)),
        )

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Let):
            value = self._expression(statement.value)
            return Let(self._local(statement.name), value)
        if isinstance(statement, Accumulate):
            value = self._expression(statement.value)
            return Accumulate(tuple(map(self._local, statement.names)), statement.kind, value)
        if isinstance(statement, Carry):
            value = self._expression(statement.value)
            return Carry(self._local(statement.name), statement.kind, value)
        return self._store(statement)

    def _store(self, store: Store) -> Store:
        bindings = self._bindings(store.bindings)
        return replace(
            store,
            buffer=self._memory[store.buffer],
            offset=self._size(store.offset),
            value=self._expression(store.value),
            bindings=bindings,
            mask=None if store.mask is None else self._expression(store.mask),
        )

    def _local(self, name: str) -> str:
        return self._locals.setdefault(name, f"t{len(self._locals)}")

    def _expression(self, expression: Expr) -> Expr:
        return rewrite(expression, self._node)

    def _node(self, node: Expr) -> Expr:
        if isinstance(node, Local):
            return replace(node, name=self._local(node.name))
        if isinstance(node, IndexValue):
            return self._index_value(node)
        if isinstance(node, Read):
            bindings = self._bindings(node.bindings, done=True)
            return replace(node, buffer=self._memory[node.buffer], offset=self._size(node.offset), bindings=bindings)
        return node

    def _bindings(self, bindings: Iterable[tuple[sympy.Symbol, Expr]], done: bool = False) -> tuple[tuple, ...]:  # type: ignore[type-arg]
        pairs = []
        for symbol, value in bindings:
            canonical_symbol = self._indices.setdefault(symbol, _symbol(f"v{len(self._indices)}"))
            pairs.append((canonical_symbol, value if done else self._expression(value)))
        return tuple(pairs)

    def _index_value(self, node: IndexValue) -> Expr:
        if node.expression.is_Symbol and node.expression not in self._indices and not node.expression.is_integer:
            number = self._numbers.setdefault(node.expression, sympy.Symbol(f"n{len(self._numbers)}", real=True))
            return replace(node, expression=number)
        assert compute_dtype(node.dtype) == node.dtype
        return replace(node, expression=self._size(node.expression))


def _ordered(parts: Iterable[sympy.Expr]) -> list[sympy.Expr]:
    """Parts of a sum or product in an order that depends on their indices first, on sizes last."""
    return sorted(parts, key=lambda part: (sympy.default_sort_key(_without_factor(part)), sympy.default_sort_key(part)))


def _without_factor(part: sympy.Expr) -> sympy.Expr:
    names = ("j", "v")
    kept = [item for item in sympy.Mul.make_args(part) if any(s.name.startswith(names) for s in item.free_symbols)]
    return sympy.Mul(*kept)


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, nonnegative=True)
