"""Nests as C++.

Place: between the frame of a kernel (``printer``) and its loops and statements.
Input: a nest and what memory it touches. Output: lines.
Besides plain nests there are two ways to walk memory in the order it lies in:

- turned: lanes walk one loop, but some reads are contiguous along another. A square of them is read row by row and
  turned in registers.
- panels: folds down the columns of a matrix. A few rows at a time are folded for a strip of columns, then the next few,
  so that rows are read along; running results of the strip are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
import torch

from mixbackend.backends.codegen.ir.kernel import Accumulate, KernelLoop, Nest
from mixbackend.backends.codegen.ir.scalar import Read
from mixbackend.backends.codegen.targets.cpp.accumulators import Accumulator, Fold, Shape, make_accumulator
from mixbackend.backends.codegen.targets.cpp.arrangement import Turn, arrange
from mixbackend.backends.codegen.targets.cpp.indices import LARGEST_LANES, lane_step
from mixbackend.backends.codegen.targets.cpp.literals import compute_type
from mixbackend.backends.codegen.targets.cpp.loops import Flush, LoopPrinter, typed
from mixbackend.backends.codegen.targets.cpp.memory import Memory, moved_as_bits, pointer_text
from mixbackend.backends.codegen.targets.cpp.points import PointPrinter
from mixbackend.backends.codegen.targets.cpp.scopes import ScopeStack, Value
from mixbackend.backends.codegen.targets.cpp.statements import StatementPrinter

PANEL_ROWS = 16
STRIP_COLUMNS = 512


def nest_lines(nest: Nest, dtypes: Mapping[str, torch.dtype], stored: frozenset[str]) -> list[str]:
    """Print a nest.

    Args:
        dtypes: storage type of every buffer and scratch of the kernel.
        stored: those that this nest writes.
    """
    return _NestPrinter(nest, Memory(dtypes, stored)).run()


class _NestPrinter:
    def __init__(self, nest: Nest, memory: Memory) -> None:
        self._nest = nest = moved_as_bits(nest, memory)
        self._memory = memory
        self._plan = arrange(nest, memory)
        self._stack = ScopeStack()
        self._point = PointPrinter(self._stack)
        self._statements = StatementPrinter(nest, self._point, memory, self._plan.running)
        self._loops = LoopPrinter(self._stack, self._point, self._statements)

    def run(self) -> list[str]:
        """All lines of the nest; names in them are its own."""
        self._kept_loops(self._plan.loops)
        return self._stack.close()

    def _kept_loops(self, loops: Sequence[KernelLoop]) -> None:
        if not loops:
            self._one_point()
            return
        loop, rest = loops[0], loops[1:]
        if self._plan.turn is not None and loop is self._plan.turn.loop:
            self._turned(loop, rest[0], self._plan.turn)
        elif self._plan.panels and loop.index == self._plan.vector:
            self._strips(loop)
        elif loop.index == self._plan.vector:
            if self._plan.running:
                self._statements.start_carries()
            self._loops.vector(loop, lambda: self._kept_loops(rest), self._plan.copies)
        else:
            if loop.mode == "ordered":
                self._statements.start_carries()
            self._loops.plain(loop, lambda: self._kept_loops(rest))

    def _one_point(self) -> None:
        if self._nest.reduced:
            self._reduction()
            return
        self._body()

    def _body(self) -> None:
        self._statements.print(self._nest.body)

    # -- reductions -----------------------------------------------------------------------------------------------

    def _reduction(self) -> None:
        plan = self._plan
        # In a rest of single vectors, kept points need one set of registers; reduced points share all sets.
        copies = plan.copies if plan.across else len(self._statements.lanes)
        shape = Shape(plan.vector is not None, plan.across, copies, plan.block is not None, self._one_block())
        made = self._accumulators(shape)
        self._reduced_loops(self._nest.reduced, [line for accumulator in made for line in accumulator.flush()])
        for accumulator in made:
            self._finish(accumulator)
        self._statements.print(self._nest.finish)

    def _one_block(self) -> str:
        """Condition under which the one reduced loop that there is ends with its first block."""
        if self._plan.block is None or len(self._nest.reduced) != 1:
            return ""
        extent = self._point.text(self._nest.reduced[0].extent)
        steps = self._plan.block.iterations
        return f"{extent} <= {steps * self._plan.copies} * lanes" if self._plan.across else f"{extent} <= {steps}"

    def _accumulators(self, shape: Shape) -> list[Accumulator]:
        folds = [item for item in self._nest.body if isinstance(item, Accumulate)]
        made = [make_accumulator(item, f"a{number}", shape) for number, item in enumerate(folds)]
        for accumulator in made:
            self._stack.emit(*accumulator.declare())
        self._statements.accumulators = {item.names[0]: fold for item, fold in zip(folds, made, strict=True)}
        return made

    def _reduced_loops(self, loops: Sequence[KernelLoop], lines: list[str]) -> None:
        if not loops:
            self._body()
            return
        loop, rest, blocks = loops[0], loops[1:], self._plan.block
        flush = None
        if blocks is not None and blocks.index == loop.index:
            flush = Flush(blocks.iterations, lines, len(self._nest.reduced) > 1)
        if loop.index == self._plan.vector:
            self._loops.vector(loop, lambda: self._reduced_loops(rest, lines), self._plan.copies, flush=flush)
        else:
            self._loops.plain(loop, lambda: self._reduced_loops(rest, lines), flush=flush)

    def _finish(self, accumulator: Accumulator) -> None:
        for lane in self._statements.lanes:
            self._point.lane = lane
            lines, results = accumulator.finish(lane.copy)
            self._stack.emit(*lines)
            for name, (text, dtype) in zip(accumulator.statement.names, results, strict=True):
                self._statements.define(name, text, dtype, lane.copy)
        self._point.lane = self._statements.lanes[0]

    # -- panels ---------------------------------------------------------------------------------------------------

    def _strips(self, columns: KernelLoop) -> None:
        strip = KernelLoop(sympy.Symbol(f"{columns.index}_strip", integer=True, nonnegative=True), columns.extent)
        stop = f"minimum({typed(self._point.text(columns.extent))}, {strip.index} + {STRIP_COLUMNS})"
        folds = [item for item in self._nest.body if isinstance(item, Accumulate)]
        self._stack.open()
        for number, item in enumerate(folds):
            self._stack.emit(f"alignas(64) {_strip_type(item)} a{number}_strip[{STRIP_COLUMNS}];")

        def inside() -> None:
            self._stack.emit(f"const i64 {columns.index}_end = {stop};")
            for number, item in enumerate(folds):
                start = Fold(item, "", Shape(False, False, 1, False)).identity
                size = f"{columns.index}_end - {strip.index}"
                self._stack.emit(f"for (i64 at = 0; at < {size}; ++at) a{number}_strip[at] = {start};")
            self._panel_loops(columns, str(strip.index), self._nest.reduced)
            self._panel_results(columns, str(strip.index), folds)

        self._loops.steps(strip, inside, str(STRIP_COLUMNS), whole=False)
        self._loops.close_around(True)

    def _panel_loops(self, columns: KernelLoop, strip: str, loops: Sequence[KernelLoop]) -> None:
        loop, rest = loops[0], loops[1:]
        if rest:
            self._loops.plain(loop, lambda: self._panel_loops(columns, strip, rest))
            return
        first = sympy.Symbol(f"{loop.index}_first", integer=True, nonnegative=True)
        stop = f"minimum({typed(self._point.text(loop.extent))}, {first} + {PANEL_ROWS})"

        def tile() -> None:
            made = self._accumulators(Shape(True, False, len(self._statements.lanes), False))
            self._loops.plain(loop, self._body, str(first), f"{loop.index}_end")
            for number, fold in enumerate(made):
                assert isinstance(fold, Fold)
                self._add_to_strip(fold, f"a{number}_strip", strip)

        def panel() -> None:
            self._stack.emit(f"const i64 {loop.index}_end = {stop};")
            self._loops.vector(columns, tile, self._plan.copies, strip, f"{columns.index}_end")

        self._stack.open()
        self._loops.steps(KernelLoop(first, loop.extent), panel, str(PANEL_ROWS), whole=False)
        self._loops.close_around(True)

    def _add_to_strip(self, fold: Fold, memory: str, strip: str) -> None:
        """Whole vectors: a strip has room for the lanes out of use."""
        kind = _strip_type(fold.statement)
        for lane in self._statements.lanes:
            place = f"{memory} + ({lane.first} - {strip})"
            value = f"convert<{kind}>({fold.registers(lane.copy)})"
            self._stack.emit(f"store({place}, {fold.function}(load<{kind}>({place}), {value}));")

    def _panel_results(self, columns: KernelLoop, strip: str, folds: Sequence[Accumulate]) -> None:
        def inside() -> None:
            for number, item in enumerate(folds):
                total = f"load<{_strip_type(item)}>(a{number}_strip + ({columns.index} - {strip}))"
                dtype = item.value.dtype
                self._statements.define(item.names[0], f"convert<{compute_type(dtype)}>({total})", dtype, 0)
            self._statements.print(self._nest.finish)

        self._loops.vector(columns, inside, 1, strip, f"{columns.index}_end")

    # -- turned ---------------------------------------------------------------------------------------------------

    def _turned(self, along: KernelLoop, vector: KernelLoop, turn: Turn) -> None:
        """Squares of ``lanes`` by ``lanes``, then what is left over."""
        first = sympy.Symbol(f"{along.index}_first", integer=True, nonnegative=True)

        def rows() -> None:
            def square() -> None:
                squares = None
                if self._point.lane.count is None:
                    squares = self._load_squares(along.index, first, vector.index, turn)

                def point() -> None:
                    for node, name in (squares or {}).items():
                        value = Value(f"{name}[{along.index} - {first}]", node.dtype, self._stack.depth, True)
                        self._point.alias(node, value)
                    self._body()

                self._loops.plain(along, point, str(first), f"{first} + lanes", unroll=str(LARGEST_LANES))

            self._loops.vector(vector, square, 1)

        self._stack.open()
        self._loops.steps(KernelLoop(first, along.extent), rows, "lanes", whole=True)
        self._loops.plain(along, lambda: self._loops.vector(vector, self._body, 1), str(first))
        self._loops.close_around(True)

    def _load_squares(
        self, along: sympy.Symbol, first: sympy.Symbol, vector: sympy.Symbol, turn: Turn
    ) -> dict[Read, str]:
        names: dict[Read, str] = {}
        for number, node in enumerate(turn.reads):
            name, step = f"x{number}", self._point.text(lane_step(node.offset, vector))
            start = self._point.text(node.offset.xreplace({along: first}))
            pointer = pointer_text(self._memory, node.buffer, node.dtype, start)
            self._stack.emit(
                f"Vec<{compute_type(node.dtype)}> {name}[lanes];",
                f"load_turned({name}, {pointer}, {step});",
            )
            names[node] = name
        return names


def _strip_type(statement: Accumulate) -> str:
    """Sums of floats are kept in float64 between panels."""
    dtype = statement.value.dtype
    is_sum = statement.kind == "sum" and dtype.is_floating_point
    return compute_type(torch.float64 if is_sum else dtype)
