"""Nests: what a block does, one row after the other.

Place: used by ``printer``. Input: a nest and its row. Output: its lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mixbackend.backends.codegen.ir.kernel import Accumulate, Carry, Kernel, Let, Nest, Statement, Store
from mixbackend.backends.codegen.targets.triton.dtypes import NAMES
from mixbackend.backends.codegen.targets.triton.folds import Fold, RunningFold
from mixbackend.backends.codegen.targets.triton.lines import Value
from mixbackend.backends.codegen.targets.triton.operators import conversion
from mixbackend.backends.codegen.targets.triton.space import Axes, Axis
from mixbackend.backends.codegen.targets.triton.values import ValuePrinter

_UNROLLED = 32
"""Points of a row up to which its loop is unrolled: indices become numbers."""

_COMBINED = {
    "add": "{old} + {new}",
    "mul": "{old} * {new}",
    "max": "maximum({old}, {new})",
    "min": "minimum({old}, {new})",
}


class NestPrinter:
    """Writes the nests of a kernel in order."""

    def __init__(self, kernel: Kernel, printer: ValuePrinter) -> None:
        self._printer = printer
        self._space = printer.space
        self._lines = printer.lines
        self._dtypes = {item.name: item.dtype for item in kernel.buffers}
        self._dtypes.update((item.name, item.dtype) for item in kernel.scratch)
        self._scratch = frozenset(item.name for item in kernel.scratch)
        self._outer: Axes = frozenset(name for name in self._space.axes if not name.startswith("r"))
        self._placed: set[str] = set()

    def nest(self, nest: Nest) -> None:
        """Write a nest."""
        self._printer.locals.clear()
        self._printer.nest += 1
        row = self._space.row_of(nest)
        if row is None:
            self._statements(nest.body)
        elif row.walk is not None and row.walk.way == "whole":
            self._whole(nest, row)
        else:
            self._in_pieces(nest, row)

    def finish(self, nest: Nest, values: Mapping[str, Value]) -> None:
        """Write what follows the folds of a nest with these results."""
        self._printer.locals.clear()
        self._printer.nest += 1
        self._printer.locals.update(values)
        self._statements(nest.finish)

    # -- rows -----------------------------------------------------------------------------------------------------

    def _whole(self, nest: Nest, row: Axis) -> None:
        if row.name not in self._placed:
            self._place(row, self._space.arange(row))
            self._placed.add(row.name)
        for statement in nest.body:
            if isinstance(statement, Accumulate):
                self._keep(statement, Fold(self._printer, statement, row, self._outer).at_once())
            elif isinstance(statement, Carry):
                running = RunningFold(self._printer, statement, row, self._outer)
                self._printer.locals[statement.name] = running.scanned()
            else:
                self._statements((statement,))
        self._statements(nest.finish)

    def _in_pieces(self, nest: Nest, row: Axis) -> None:
        folds = {
            statement.names: Fold(self._printer, statement, row, self._outer)
            for statement in nest.body
            if isinstance(statement, Accumulate)
        }
        running = {
            statement.name: RunningFold(self._printer, statement, row, self._outer)
            for statement in nest.body
            if isinstance(statement, Carry)
        }
        for fold in folds.values():
            fold.declare()
        for carry in running.values():
            carry.declare()
        self._open(row)
        for statement in nest.body:
            if isinstance(statement, Accumulate):
                folds[statement.names].update()
            elif isinstance(statement, Carry):
                carry = running[statement.name]
                self._printer.locals[statement.name] = carry.continued(carry.scanned())
            else:
                self._statements((statement,))
        self._lines.close()
        for statement in nest.body:
            if isinstance(statement, Accumulate):
                self._keep(statement, folds[statement.names].finish())
        self._statements(nest.finish)

    def _open(self, row: Axis) -> None:
        extent = self._space.text(row.extent)
        if row.dimension is None:
            unrolled = row.extent.is_Integer and row.extent <= _UNROLLED
            counted = f"tl.static_range({extent})" if unrolled else f"range(0, {extent})"
            self._lines.open(f"for {row.name} in {counted}:", row.name)
            for line in self._space.apart(row):
                self._lines.add(line)
            return
        self._lines.open(f"for {row.name}_start in range(0, {extent}, {row.block}):", row.name)
        self._place(row, f"{row.name}_start + {self._space.arange(row)}")

    def _place(self, row: Axis, text: str) -> None:
        self._lines.add(f"{row.name} = {text}")
        if row.is_masked:
            self._lines.add(f"{row.name}_in = {row.name} < {self._space.text(row.extent)}")
        for line in self._space.apart(row):
            self._lines.add(line)

    def _keep(self, statement: Accumulate, values: list[Value]) -> None:
        for name, value in zip(statement.names, values, strict=True):
            self._printer.locals[name] = value

    # -- statements -----------------------------------------------------------------------------------------------

    def _statements(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, Let):
                self._printer.locals[statement.name] = self._printer.value(statement.value)
            else:
                assert isinstance(statement, Store), f"{type(statement).__name__} has no place here"
                self._store(statement)

    def _store(self, store: Store) -> None:
        value = self._printer.value(store.value)
        plain = store.mode == "set" and store.mask is None and not store.bindings
        if store.buffer in self._scratch:
            assert plain, f"{store} into scratch"
            self._lines.store(store.buffer, store.offset, value)
            return
        mask = None if store.mask is None else self._printer.value(store.mask)
        bound = self._printer.bound(store.bindings)
        pointer, masks, _ = self._printer.pointer(store.buffer, store.offset, bound, mask, value.axes)
        self._printer.will_write(store.buffer)
        self._lines.add(self._write(store, value, pointer, masks))
        self._lines.store(store.buffer, store.offset if plain else None, value if plain else None)

    def _write(self, store: Store, value: Value, pointer: str, masks: str) -> str:
        dtype = self._dtypes[store.buffer]
        guard = f", {masks}" if masks else ""
        text = conversion(value.text, value.dtype, dtype)
        if store.mode == "set":
            return f"tl.store({pointer}, {text}{guard})"
        if store.atomic:
            return f'tl.atomic_{store.mode}({pointer}, {text}{guard}, sem="relaxed")'
        other = ", other=0" if masks else ""
        old = f"tl.load({pointer}{guard}{other}).to({NAMES[value.dtype]})"
        new = _COMBINED[store.mode].format(old=old, new=value.text)
        return f"tl.store({pointer}, ({new}).to({NAMES[dtype]}){guard})"
