"""Folds and scans along a row.

Place: used by ``nests``. Three ways: a row that is in registers is folded at once; of a row in pieces every lane folds
its own values, and the lanes are folded behind the loop; a row of points is folded point by point.
Invariants: what lies outside of the row takes no part: it is replaced by what changes nothing. Lanes see equally many
values, but for the last piece, so that running statistics divide once per piece and not once per value.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mixbackend.backends.codegen.ir.kernel import Accumulate, Carry
from mixbackend.backends.codegen.targets.triton.dtypes import NAMES, highest, literal, lowest
from mixbackend.backends.codegen.targets.triton.lines import Value
from mixbackend.backends.codegen.targets.triton.space import Axes, Axis
from mixbackend.backends.codegen.targets.triton.values import ValuePrinter

_COMBINE: Mapping[str, str] = {
    "sum": "add",
    "dot": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "any": "maximum",
    "all": "minimum",
    "argmax": "later_maximum",
    "argmin": "later_minimum",
    "logsumexp": "logaddexp",
}

_SUMS = frozenset({"sum", "dot"})

_PARTS: Mapping[str, int] = {"argmax": 2, "argmin": 2, "welford": 2}
"""Values that a fold keeps, where it is more than one."""


def _identity(kind: str, dtype: torch.dtype) -> str:
    if kind in ("max", "argmax", "any", "logsumexp"):
        return literal(lowest(dtype))
    if kind in ("min", "argmin", "all"):
        return literal(highest(dtype))
    return literal({"sum": 0, "dot": 0, "prod": 1}[kind] * (1.0 if dtype.is_floating_point else 1))


class Fold:
    """One ``Accumulate`` of a nest.

    Args:
        printer: of values.
        statement: what is folded.
        row: along which.
        outer: axes of the outer points.
    """

    def __init__(self, printer: ValuePrinter, statement: Accumulate, row: Axis, outer: Axes) -> None:
        self._printer = printer
        self._statement = statement
        self._row = row
        self._outer = outer
        self._axes = printer.space.dimensions(outer | {row.name})
        self._dtype = torch.int32 if statement.kind in ("any", "all") else statement.value.dtype
        self._names = [printer.lines.name() for _ in range(_PARTS.get(statement.kind, 1))]

    def declare(self) -> None:
        """Write the start of a fold over pieces or points."""
        shape = self._printer.space.shape(self._axes)
        kind, dtype = self._statement.kind, NAMES[self._dtype]
        if kind == "welford":
            starts = [f"tl.zeros({shape}, {dtype})"] * 2
        else:
            starts = [f"tl.full({shape}, {_identity(kind, self._dtype)}, {dtype})"]
        if kind in ("argmax", "argmin"):
            starts.append(f"tl.full({shape}, {torch.iinfo(torch.int64).max}, tl.int64)")
        for name, start in zip(self._names, starts, strict=True):
            self._printer.lines.add(f"{name} = {start}")

    def update(self) -> None:
        """Write what a piece or a point adds."""
        kind, lines = self._statement.kind, self._printer.lines
        first = self._names[0]
        if kind == "welford":
            self._continue_statistics()
        elif kind in ("argmax", "argmin"):
            value, place = self._inside(_identity(kind, self._dtype)), self._places()
            names = ", ".join(self._names)
            lines.add(f"{names} = {_COMBINE[kind]}({names}, {value}, {place})")
        else:
            value = self._inside(_identity(kind, self._dtype))
            combined = f"{first} + {value}" if kind in _SUMS else f"{_COMBINE[kind]}({first}, {value})"
            lines.add(f"{first} = {combined}")

    def finish(self) -> list[Value]:
        """Write the end of a fold over pieces or points: its results."""
        if self._statement.kind == "welford":
            return self._joined_statistics()
        if self._row.dimension is None:
            return self._results(self._names)
        if self._statement.kind in ("argmax", "argmin"):
            parts = ", ".join(self._names)
            folded = ", ".join(self._names)
            self._printer.lines.add(f"{folded} = tl.reduce(({parts}), {self._row.dimension}, {self._combine})")
            return self._results([f"{name}{self._slice}" for name in self._names])
        return self._results([self._folded(self._names[0])])

    def at_once(self) -> list[Value]:
        """Write the fold of a whole row: its results."""
        kind = self._statement.kind
        if kind == "welford":
            return self._statistics()
        value = self._inside(_identity(kind, self._dtype))
        if kind not in ("argmax", "argmin"):
            return self._results([self._folded(value)])
        names = ", ".join(self._names)
        pair = f"({value}, {self._places()})"
        self._printer.lines.add(f"{names} = tl.reduce({pair}, {self._row.dimension}, {self._combine})")
        return self._results([f"{name}{self._slice}" for name in self._names])

    # -- parts ----------------------------------------------------------------------------------------------------

    @property
    def _combine(self) -> str:
        return _COMBINE[self._statement.kind]

    @property
    def _slice(self) -> str:
        return "[:, None]"

    def _value(self) -> Value:
        value = self._printer.value(self._statement.value)
        if self._statement.kind in ("any", "all"):
            value = self._printer.lines.value(f"{value.text}.to(tl.int32)", torch.int32, value.axes, value.buffers)
        return self._printer.whole(value, self._axes)

    def _inside(self, outside: str) -> str:
        """The value at points of the row, something else outside."""
        value = self._value()
        if not self._row.is_masked:
            return value.text
        text = f"tl.where({self._row.name}_in, {value.text}, {outside})"
        return self._printer.lines.value(text, value.dtype, value.axes | {self._row.name}, value.buffers).text

    def _places(self) -> str:
        """The place of every point in its row."""
        space = self._printer.space
        place = f"({self._row.name} + zero).to(tl.int64)"
        return f"tl.broadcast_to({place}, {space.shape(self._axes)})"

    def _folded(self, text: str) -> str:
        if self._statement.kind in _SUMS:
            return f"tl.sum({text}, {self._row.dimension}){self._slice}"
        return f"tl.reduce({text}, {self._row.dimension}, {self._combine}){self._slice}"

    def _statistics(self) -> list[Value]:
        """Mean first, distances from it second: the row is in registers."""
        lines, value = self._printer.lines, self._value()
        count = f"{float(self._row.extent)}"
        inside = self._inside("0.0")
        mean = lines.value(f"tl.sum({inside}, {self._row.dimension}){self._slice} / {count}", value.dtype, self._outer)
        apart = f"({value.text} - {mean.text})"
        if self._row.is_masked:
            apart = f"tl.where({self._row.name}_in, {apart}, 0.0)"
        name = lines.value(apart, value.dtype, value.axes | {self._row.name}).text
        return self._results([mean.text, f"tl.sum({name} * {name}, {self._row.dimension}){self._slice}"])

    def _continue_statistics(self) -> None:
        """A value more for every lane: each has had one per turn."""
        row, lines = self._row, self._printer.lines
        turn = row.name if row.dimension is None else f"{row.name}_start // {row.block}"
        one = f"tl.full({self._printer.space.shape(())}, 1.0, {NAMES[self._dtype]})"
        share, value = lines.name(), self._value().text
        lines.add(f"{share} = {one} / ({turn} + 1)")
        names = ", ".join(self._names)
        inside = f", {row.name}_in" if row.is_masked else ""
        function = "continue_statistics_inside" if row.is_masked else "continue_statistics"
        lines.add(f"{names} = {function}({names}, {value}, {share}{inside})")

    def _joined_statistics(self) -> list[Value]:
        """Those of all lanes together: distances inside of lanes, and of lanes' means from the mean of all."""
        mean, squares = self._names
        row, space = self._row, self._printer.space
        extent = space.text(row.extent)
        if row.dimension is None:
            return self._results([mean if row.extent.is_positive else self._or_nothing(mean, extent), squares])
        lanes = self._printer.lines.name()
        turns = f"({extent} + {row.block - 1} - {space.arange(row)}) // {row.block}"
        self._printer.lines.add(f"{lanes} = ({turns} + zero).to({NAMES[self._dtype]})")
        folded = f"statistics_of_lanes({mean}, {squares}, {lanes}, {row.dimension})"
        self._printer.lines.add(f"{mean}, {squares} = {folded}")
        return self._results([f"{mean}{self._slice}", f"{squares}{self._slice}"])

    def _or_nothing(self, mean: str, extent: str) -> str:
        return f'tl.where({extent} == 0, float("nan"), {mean})'

    def _results(self, texts: list[str]) -> list[Value]:
        """The results that the statement names."""
        kind, lines = self._statement.kind, self._printer.lines
        if kind in ("argmax", "argmin"):
            return [lines.value(texts[1], torch.int64, self._outer)]
        if kind in ("any", "all"):
            return [lines.value(f"({texts[0]} > 0)", torch.bool, self._outer)]
        return [lines.value(text, self._dtype, self._outer) for text in texts]


class RunningFold:
    """One ``Carry`` of a nest: as ``Fold``, with every intermediate result."""

    def __init__(self, printer: ValuePrinter, statement: Carry, row: Axis, outer: Axes) -> None:
        self._printer = printer
        self._statement = statement
        self._row = row
        self._outer = outer
        self._name = printer.lines.name()

    def declare(self) -> None:
        """Write the start of a scan over pieces."""
        dtype = self._statement.value.dtype
        shape = self._printer.space.shape(self._outer)
        self._printer.lines.add(
            f"{self._name} = tl.full({shape}, {_identity(self._statement.kind, dtype)}, {NAMES[dtype]})"
        )

    def scanned(self) -> Value:
        """Write the scan of a piece; what was before it is not in it yet."""
        kind, lines, row = self._statement.kind, self._printer.lines, self._row
        axes = self._outer | {row.name}
        value = self._printer.whole(self._printer.value(self._statement.value), axes)
        inside = value.text
        if row.is_masked:
            inside = f"tl.where({row.name}_in, {inside}, {_identity(kind, value.dtype)})"
            inside = lines.value(inside, value.dtype, value.axes | axes, value.buffers).text
        return lines.value(f"tl.associative_scan({inside}, {row.dimension}, {_COMBINE[kind]})", value.dtype, axes)

    def continued(self, scanned: Value) -> Value:
        """Write the scan with what was before, and keep what it ends with."""
        combine, lines = _COMBINE[self._statement.kind], self._printer.lines
        axes = self._outer | {self._row.name}
        made = lines.value(f"{combine}({self._name}, {scanned.text})", scanned.dtype, axes)
        last = f"tl.arange(0, {self._row.block})[None, :] == {self._row.block - 1}"
        # Sums of small integers are wider than what is summed up.
        narrow = f".to({NAMES[made.dtype]})" if made.dtype.itemsize < 4 else ""
        kept = f"tl.sum(tl.where({last}, {made.text}, 0), {self._row.dimension})[:, None]{narrow}"
        lines.add(f"{self._name} = {kept}")
        return made
