"""Print: one kernel as a Python function on flat numpy arrays.

Loops of ``outer`` become ``for`` statements; the loops of a nest become index arrays, so that each statement is one
numpy call on all points at once. Loops that must run in order, and kept loops around a reduction, stay ``for``
statements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.backends.codegen.ir.kernel import Accumulate, Carry, Kernel, KernelLoop, Let, Nest, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Apply, Bindings, Constant, Expr, IndexValue, Local, Read

PRINTER_VERSION = "1"
"""Counts changes of what is printed: text that was stored before is printed again."""

NUMPY_TYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool_",
}
"""Names in numpy."""


def print_kernel(kernel: Kernel, name: str) -> str:
    """Source of ``name(buffers, parameters, numbers)``; buffers are flat arrays."""
    printer = _Printer()
    printer.line(f"def {name}(buffers, parameters, numbers):")
    with_names = (
        ("buffers", [buffer.name for buffer in kernel.buffers]),
        ("parameters", list(map(str, kernel.parameters))),
        ("numbers", list(map(str, kernel.numbers))),
    )
    printer.depth = 1
    for source, names in with_names:
        if names:
            printer.line(f"{', '.join(names)}, = {source}")
    for loop in kernel.outer:
        printer.open_loop(loop)
    for piece in kernel.scratch:
        printer.line(f"{piece.name} = np.empty({index_text(piece.elements)}, np.{NUMPY_TYPES[piece.dtype]})")
    for nest in kernel.nests:
        printer.nest(nest)
    if not kernel.nests:
        printer.line("pass")
    return "\n".join(printer.lines) + "\n"


def index_text(expression: sympy.Expr) -> str:
    """An index expression in Python; works on numbers and on index arrays."""
    if expression.is_Integer or expression.is_Symbol:
        return str(expression)
    parts = list(map(index_text, expression.args))
    if expression.is_Add:
        return f"({' + '.join(parts)})"
    if expression.is_Mul:
        return f"({' * '.join(parts)})"
    if expression.is_Pow and expression.args[1].is_Integer:
        return f"({parts[0]} ** {parts[1]})"
    if expression.func in (FloorDiv, Modulo):
        return f"({parts[0]} {'//' if expression.func is FloorDiv else '%'} {parts[1]})"
    if expression.func in (sympy.Min, sympy.Max):
        function = "np.minimum" if expression.func is sympy.Min else "np.maximum"
        text = parts[0]
        for part in parts[1:]:
            text = f"{function}({text}, {part})"
        return text
    raise ValueError(f"no numpy for the index expression {expression}")


def _number(value: int | float | bool) -> str:
    """A constant; infinities and NaN have no literal."""
    return repr(value) if not isinstance(value, float) or math.isfinite(value) else f"float({str(value)!r})"


class _Printer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def open_loop(self, loop: KernelLoop) -> None:
        self.line(f"for {loop.index} in range({index_text(loop.extent)}):")
        self.depth += 1

    def nest(self, nest: Nest) -> None:
        depth = self.depth
        steps = [loop for loop in nest.loops if nest.reduced or loop.mode == "ordered"]
        # Other loops may run in any order, so that those in order can be innermost of the ``for`` statements.
        steps.sort(key=lambda loop: loop.mode == "ordered")
        at_once = [loop for loop in nest.loops if loop not in steps]
        for loop in steps:
            if loop.mode == "ordered":
                self._start_carries(nest.body)
            self.open_loop(loop)
        self._grid(list(nest.reduced) or at_once)
        for statement in nest.body:
            self._statement(statement, nest.reduced)
        for statement in nest.finish:
            self._statement(statement, ())
        self.depth = depth

    def _grid(self, loops: Sequence[KernelLoop]) -> None:
        if loops:
            names = "".join(f"{loop.index}, " for loop in loops)
            self.line(f"{names}= grid({', '.join(index_text(loop.extent) for loop in loops)})")

    def _start_carries(self, body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Carry):
                self.line(f"{statement.name} = None")

    def _statement(self, statement: Statement, reduced: Sequence[KernelLoop]) -> None:
        if isinstance(statement, Let):
            self.line(f"{statement.name} = {self.value(statement.value)}")
        elif isinstance(statement, Accumulate):
            names = "".join(f"{name}, " for name in statement.names)
            count = " * ".join(f"({index_text(loop.extent)})" for loop in reduced)
            self.line(f"{names}= fold({statement.kind!r}, {self.value(statement.value)}, {count})")
        elif isinstance(statement, Carry):
            self.line(f"value = {self.value(statement.value)}")
            name = statement.name
            self.line(f"{name} = value if {name} is None else CARRY[{statement.kind!r}]({name}, value)")
        else:
            self._store(statement)

    def _store(self, store: Store) -> None:
        self._bind(store.bindings)
        mask = "" if store.mask is None else f", {self.value(store.mask)}"
        value = self.value(store.value)
        self.line(f"store({store.buffer}, {index_text(store.offset)}, {value}, {store.mode!r}{mask})")

    def _bind(self, bindings: Bindings) -> None:
        for symbol, value in bindings:
            self.line(f"{symbol} = {self.value(value)}")

    def value(self, node: Expr) -> str:
        """A scalar expression; run-time indices are bound on lines before it."""
        dtype = f"np.{NUMPY_TYPES[node.dtype]}"
        if isinstance(node, Constant):
            return f"{dtype}({_number(node.value)})"
        if isinstance(node, IndexValue):
            return f"convert({index_text(node.expression)}, {dtype})"
        if isinstance(node, Local):
            return node.name
        if isinstance(node, Read):
            self._bind(node.bindings)
            mask = "" if node.mask is None else f", {self.value(node.mask)}, {_number(node.other)}"
            return f"load({node.buffer}, {index_text(node.offset)}, {dtype}{mask})"
        assert isinstance(node, Apply)
        if node.op == "to_dtype":
            return f"convert({self.value(node.arguments[0])}, {dtype})"
        return f"OPERATORS[{node.op!r}]({', '.join(map(self.value, node.arguments))})"
