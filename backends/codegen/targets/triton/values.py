"""Scalar expressions as Triton values.

Place: used by ``nests``. Input: an expression of a kernel. Output: the variable that holds it; its lines are written.
Invariants: a value has as many dimensions as its block, of one point along axes it does not depend on. Nothing is read
outside of the kernel's points. What this kernel wrote before is taken from registers, or from memory after all threads
of the block have arrived.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import walk
from mixbackend.backends.codegen.ir.kernel import Kernel
from mixbackend.backends.codegen.ir.scalar import (
    Apply,
    Bindings,
    Constant,
    Expr,
    IndexValue,
    Local,
    Read,
    compute_dtype,
)
from mixbackend.backends.codegen.targets.triton.dtypes import NAMES, literal
from mixbackend.backends.codegen.targets.triton.lines import Lines, Value
from mixbackend.backends.codegen.targets.triton.operators import conversion, operation
from mixbackend.backends.codegen.targets.triton.random_numbers import uniform_text
from mixbackend.backends.codegen.targets.triton.space import NOWHERE, Axes, Space


class ValuePrinter:
    """Writes values.

    Attributes:
        locals: values of ``Local`` names of the present nest.
        nest: number of the present nest.
    """

    def __init__(self, kernel: Kernel, space: Space, lines: Lines) -> None:
        self.space = space
        self.lines = lines
        self.locals: dict[str, Value] = {}
        self.nest = 0
        self._numbers = frozenset(kernel.numbers)
        self._dtypes = {item.name: item.dtype for item in kernel.buffers}
        self._dtypes.update((item.name, item.dtype) for item in kernel.scratch)
        self._scratch = frozenset(item.name for item in kernel.scratch)
        self._unseen: set[str] = set()
        self._read_in: dict[str, int] = {}

    def value(self, expression: Expr) -> Value:
        """The value of an expression."""
        done: dict[Expr, Value] = {}
        for node in walk(expression):
            done[node] = self._node(node, done)
        return done[expression]

    def whole(self, value: Value, axes: Axes) -> Value:
        """The value with a point for every point of these axes."""
        axes = self.space.dimensions(axes)
        if self.space.dimensions(value.axes) == axes:
            return value
        text = f"tl.broadcast_to({value.text}, {self.space.shape(axes)})"
        return self.lines.value(text, value.dtype, value.axes | axes, value.buffers)

    def bound(self, bindings: Bindings, done: Mapping[Expr, Value] | None = None) -> dict[sympy.Symbol, Value]:
        """Values of the symbols in an offset, as wide as addresses."""
        values = {symbol: self.value(value) if done is None else done[value] for symbol, value in bindings}
        return {
            symbol: self._named(conversion(value.text, value.dtype, torch.int64), torch.int64, (value,))
            for symbol, value in values.items()
        }

    def pointer(
        self, buffer: str, offset: sympy.Expr, bound: Mapping[sympy.Symbol, Value], mask: Value | None, others: Axes
    ) -> tuple[str, str, Axes]:
        """Text of pointers and of the mask that they need, and the axes they depend on.

        Args:
            others: axes that they are wanted for as well.
        """
        axes = self.space.axes_of(offset).union(*(value.axes for value in bound.values()))
        text = self.space.text(offset, {symbol: value.text for symbol, value in bound.items()})
        wanted = self.space.dimensions(axes | others | (NOWHERE if mask is None else mask.axes))
        if not self.space.dimensions(axes):
            text = f"{text} + zero"
        if wanted != self.space.dimensions(axes):
            text = f"tl.broadcast_to({text}, {self.space.shape(wanted)})"
        masks = self.space.masks(wanted)
        masks += [] if mask is None else [mask.text]
        return f"{buffer} + {text}", " & ".join(masks), axes | wanted

    def will_write(self, buffer: str) -> None:
        """Wait for what other threads of the block still read of a buffer, and note that it changes."""
        if buffer in self._scratch:
            return
        if self._read_in.get(buffer, self.nest) != self.nest:
            self._wait()
        self._unseen.add(buffer)

    def _wait(self) -> None:
        self.lines.before("tl.debug_barrier()")
        self._unseen.clear()
        self._read_in.clear()

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _node(self, node: Expr, done: Mapping[Expr, Value]) -> Value:
        if isinstance(node, Constant):
            text = f"tl.full({self.space.shape(())}, {literal(node.value)}, {NAMES[node.dtype]})"
            return self.lines.value(text, node.dtype, NOWHERE)
        if isinstance(node, Local):
            return self.locals[node.name]
        if isinstance(node, IndexValue):
            return self._index_value(node)
        if isinstance(node, Read):
            return self._read(node, done)
        assert isinstance(node, Apply), f"{type(node).__name__} is no part of a kernel"
        arguments = [done[argument] for argument in node.arguments]
        if node.op == "uniform":
            return self._named(uniform_text(node, [item.text for item in arguments], self.space), node.dtype, arguments)
        return self._named(operation(node, [item.text for item in arguments]), node.dtype, arguments)

    def _named(self, text: str, dtype: torch.dtype, arguments: tuple[Value, ...] | list[Value]) -> Value:
        for argument in arguments:
            if text == argument.text:
                return argument
        axes = NOWHERE.union(*(item.axes for item in arguments))
        buffers = frozenset[str]().union(*(item.buffers for item in arguments))
        return self.lines.value(text, dtype, axes, buffers)

    def _index_value(self, node: IndexValue) -> Value:
        expression = node.expression
        axes = self.space.axes_of(expression)
        text = expression.name if expression in self._numbers else self.space.text(expression)
        if not self.space.dimensions(axes):
            source = "tl.float64" if expression in self._numbers else "tl.int64"
            text = f"tl.full({self.space.shape(())}, {text}, {source})"
        return self.lines.value(f"({text}).to({NAMES[node.dtype]})", node.dtype, axes)

    def _read(self, node: Read, done: Mapping[Expr, Value]) -> Value:
        held = None if node.bindings else self.lines.stored(node.buffer, node.offset)
        dtype = self._dtypes[node.buffer]
        if held is not None:
            value = self._as_stored(held, dtype)
            return value if node.mask is None else self._where(done[node.mask], value, node.other)
        assert node.buffer not in self._scratch, f"{node.buffer} is read where it was not written"
        if node.buffer in self._unseen:
            self._wait()
        self._read_in[node.buffer] = self.nest
        mask = None if node.mask is None else done[node.mask]
        bound = self.bound(node.bindings, done)
        pointer, masks, axes = self.pointer(node.buffer, node.offset, bound, mask, NOWHERE)
        other = node.other if node.mask is not None else 0.0 if dtype.is_floating_point else 0
        guard = f", {masks}, other={literal(other)}" if masks else ""
        text = conversion(f"tl.load({pointer}{guard})", dtype, node.dtype)
        buffers = frozenset({node.buffer}).union(
            *(item.buffers for item in (*bound.values(), *([mask] if mask else [])))
        )
        return self.lines.value(text, node.dtype, axes, buffers)

    def _where(self, mask: Value, value: Value, other: float) -> Value:
        """A value that is held, as a masked read has it."""
        return self._named(f"tl.where({mask.text}, {value.text}, {literal(other)})", value.dtype, (mask, value))

    def _as_stored(self, value: Value, dtype: torch.dtype) -> Value:
        """A value as memory would give it back."""
        if compute_dtype(dtype) == dtype:
            return value
        return self._named(f"{value.text}.to({NAMES[dtype]}).to({NAMES[value.dtype]})", value.dtype, (value,))
