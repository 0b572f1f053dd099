"""Nests as C++ loops.

Place: between the frame of a kernel (``printer``) and its statements.
Input: a nest and what memory it touches. Output: lines.
A vector loop is printed as whole vectors (several at a time where that hides waiting), then single vectors, then the
rest with fewer lanes in use::

    for (; i + 4 * lanes <= n; i += 4 * lanes) { four copies }
    for (; i + lanes <= n; i += lanes) { one copy }
    if (i < n) { one copy of n - i lanes }

Long reductions run in blocks, after each of which partial results are added to totals (see ``accumulators``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from mixbackend.backends.codegen.ir.kernel import Accumulate, KernelLoop, Nest
from mixbackend.backends.codegen.targets.cpp.accumulators import Accumulator, Shape, make_accumulator
from mixbackend.backends.codegen.targets.cpp.arrangement import arrange
from mixbackend.backends.codegen.targets.cpp.indices import LARGEST_LANES
from mixbackend.backends.codegen.targets.cpp.memory import Memory
from mixbackend.backends.codegen.targets.cpp.points import Lane, PointPrinter, copy_name
from mixbackend.backends.codegen.targets.cpp.scopes import INDENT, OpenLoop, ScopeStack
from mixbackend.backends.codegen.targets.cpp.statements import StatementPrinter


def nest_lines(nest: Nest, dtypes: Mapping[str, torch.dtype], stored: frozenset[str]) -> list[str]:
    """Print a nest.

    Args:
        dtypes: storage type of every buffer and scratch of the kernel.
        stored: those that this nest writes.
    """
    return _NestPrinter(nest, Memory(dtypes, stored)).run()


class _NestPrinter:
    def __init__(self, nest: Nest, memory: Memory) -> None:
        self._nest = nest
        self._plan = arrange(nest)
        self._stack = ScopeStack()
        self._point = PointPrinter(self._stack)
        self._statements = StatementPrinter(nest, self._point, memory)

    def run(self) -> list[str]:
        """All lines of the nest; names in them are its own."""
        self._kept_loops(self._plan.loops)
        return self._stack.close()

    # -- loops ----------------------------------------------------------------------------------------------------

    def _kept_loops(self, loops: Sequence[KernelLoop]) -> None:
        if not loops:
            self._one_point()
            return
        loop, rest = loops[0], loops[1:]
        if loop.index == self._plan.vector:
            self._vector_loop(loop, lambda: self._kept_loops(rest), [])
            return
        if loop.mode == "ordered":
            self._statements.start_carries()
        self._plain_loop(loop, lambda: self._kept_loops(rest), [])

    def _one_point(self) -> None:
        if self._nest.reduced:
            self._reduction()
            return
        self._statements.print(self._nest.body)

    def _plain_loop(self, loop: KernelLoop, inside: Callable[[], None], flush: list[str]) -> None:
        """One iteration after the other; ``flush`` is printed after each block, if this loop has blocks."""
        name, extent = str(loop.index), self._point.text(loop.extent)
        self._stack.open()
        lines = self._body(loop, inside)
        if loop.mode == "unrolled":
            self._stack.emit(f"#pragma GCC unroll {extent}")
        if flush and self._plan.block is not None:
            stop = f"{name}_stop"
            self._stack.emit(f"for (i64 {name} = 0; {name} < {extent};) {{")
            self._stack.indented(
                [
                    f"const i64 {stop} = minimum({self._typed(loop)}, {name} + {self._plan.block.iterations});",
                    f"for (; {name} < {stop}; ++{name}) {{",
                    *(INDENT + line for line in lines),
                    "}",
                    *flush,
                ]
            )
        else:
            self._stack.emit(f"for (i64 {name} = 0; {name} < {extent}; ++{name}) {{")
            self._stack.indented(lines)
        self._stack.emit("}")
        self._close_around(self._stack.has_values())

    def _typed(self, loop: KernelLoop) -> str:
        text = self._point.text(loop.extent)
        return f"{text}ll" if loop.extent.is_Integer else text

    def _body(self, loop: KernelLoop, inside: Callable[[], None]) -> list[str]:
        """Lines of the body of a loop that the caller prints."""
        extent = OpenLoop(loop.extent, self._point.text(loop.extent), self._point.depth(loop.extent))
        self._stack.open(extent)
        self._point.enter(loop.index)
        inside()
        self._point.leave(loop.index)
        return self._stack.close()

    def _close_around(self, needed: bool) -> None:
        """End the block around a loop; braces only where something is named in it."""
        lines = self._stack.close()
        if not needed:
            self._stack.emit(*lines)
            return
        self._stack.emit("{")
        self._stack.indented(lines)
        self._stack.emit("}")

    # -- vectors --------------------------------------------------------------------------------------------------

    def _vector_loop(self, loop: KernelLoop, inside: Callable[[], None], flush: list[str]) -> None:
        name, extent = str(loop.index), self._point.text(loop.extent)
        around = self._statements.lanes
        self._stack.open()
        self._stack.emit(f"i64 {name} = 0;")
        copies = self._plan.copies
        lines = self._copies(loop, inside, tuple(Lane(loop.index, copy) for copy in range(copies)))
        step = "lanes" if copies == 1 else f"{copies} * lanes"
        if flush and self._plan.block is not None:
            self._emit_blocks(name, self._typed(loop), step, lines, flush, self._plan.block.iterations * copies)
        else:
            self._emit_vectors(name, extent, step, lines)
        if copies > 1 and not _is_multiple(loop, copies):
            lines = self._copies(loop, inside, (Lane(loop.index),))
            self._emit_vectors(name, extent, "lanes", lines)
        if not _is_multiple(loop, 1):
            lines = self._copies(loop, inside, (Lane(loop.index, count=f"{name}_rest"),))
            self._stack.emit(f"if ({name} < {extent}) {{", f"{INDENT}const i64 {name}_rest = {extent} - {name};")
            self._stack.indented(lines)
            self._stack.emit("}")
        self._statements.lanes = around
        self._point.lane = around[0]
        self._close_around(True)

    def _copies(self, loop: KernelLoop, inside: Callable[[], None], lanes: tuple[Lane, ...]) -> list[str]:
        def body() -> None:
            for lane in lanes[1:]:
                self._stack.emit(f"const i64 {copy_name(loop.index, lane.copy)} = {loop.index} + {lane.copy} * lanes;")
            inside()

        # Extents are printed where the loop is not open yet.
        self._statements.lanes = lanes
        self._point.lane = lanes[0]
        return self._body(loop, body)

    def _emit_vectors(self, name: str, extent: str, step: str, lines: list[str]) -> None:
        self._stack.emit(f"for (; {name} + {step} <= {extent}; {name} += {step}) {{")
        self._stack.indented(lines)
        self._stack.emit("}")

    def _emit_blocks(self, name: str, extent: str, step: str, lines: list[str], flush: list[str], size: int) -> None:
        stop = f"{name}_stop"
        self._stack.emit(
            f"while ({name} + {step} <= {extent}) {{",
            f"{INDENT}const i64 {stop} = minimum({extent}, {name} + {size} * lanes);",
            f"{INDENT}for (; {name} + {step} <= {stop}; {name} += {step}) {{",
            *(2 * INDENT + line for line in lines),
            f"{INDENT}}}",
            *(INDENT + line for line in flush),
            "}",
        )

    # -- reductions -----------------------------------------------------------------------------------------------

    def _reduction(self) -> None:
        plan = self._plan
        # In a rest of single vectors, kept points need one set of registers; reduced points share all sets.
        copies = plan.copies if plan.across else len(self._statements.lanes)
        shape = Shape(plan.vector is not None, plan.across, copies, plan.block is not None)
        folds = [item for item in self._nest.body if isinstance(item, Accumulate)]
        made = [make_accumulator(item, f"a{number}", shape) for number, item in enumerate(folds)]
        for accumulator in made:
            self._stack.emit(*accumulator.declare())
        self._statements.accumulators = {item.names[0]: fold for item, fold in zip(folds, made, strict=True)}
        self._reduced_loops(self._nest.reduced, [line for accumulator in made for line in accumulator.flush()])
        for accumulator in made:
            self._finish(accumulator)
        self._statements.print(self._nest.finish)

    def _reduced_loops(self, loops: Sequence[KernelLoop], flush: list[str]) -> None:
        if not loops:
            self._statements.print(self._nest.body)
            return
        loop, rest = loops[0], loops[1:]
        block = self._plan.block
        here = flush if block is not None and block.index == loop.index else []
        print_loop = self._vector_loop if loop.index == self._plan.vector else self._plain_loop
        print_loop(loop, lambda: self._reduced_loops(rest, flush), here)

    def _finish(self, accumulator: Accumulator) -> None:
        for lane in self._statements.lanes:
            self._point.lane = lane
            lines, results = accumulator.finish(lane.copy)
            self._stack.emit(*lines)
            for name, (text, dtype) in zip(accumulator.statement.names, results, strict=True):
                self._statements.define(name, text, dtype, lane.copy)
        self._point.lane = self._statements.lanes[0]


def _is_multiple(loop: KernelLoop, copies: int) -> bool:
    """Whether nothing is left over, whatever the number of lanes."""
    return bool(loop.extent.is_Integer and int(loop.extent) % (LARGEST_LANES * copies) == 0)
