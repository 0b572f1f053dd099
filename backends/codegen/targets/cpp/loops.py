"""Loops as C++: plain ones and vector loops.

Place: between the printer of nests, which decides what loops there are, and the blocks they are written into.
Input: a loop and what prints its inside. Output: lines in the current block.
A vector loop is printed as whole vectors (several at a time where that hides waiting), then single vectors, then the
rest with fewer lanes in use::

    for (; i + 4 * lanes <= n; i += 4 * lanes) { four copies }
    for (; i + lanes <= n; i += lanes) { one copy }
    if (i < n) { one copy of n - i lanes }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mixbackend.backends.codegen.ir.kernel import KernelLoop
from mixbackend.backends.codegen.targets.cpp.indices import LARGEST_LANES
from mixbackend.backends.codegen.targets.cpp.points import Lane, PointPrinter, copy_name
from mixbackend.backends.codegen.targets.cpp.scopes import INDENT, OpenLoop, ScopeStack
from mixbackend.backends.codegen.targets.cpp.statements import StatementPrinter

Inside = Callable[[], None]


@dataclass(frozen=True)
class Flush:
    """What to do after every so many iterations (of a vector loop: steps).

    Attributes:
        iterations: how many.
        lines: what to do.
        at_end: whether to do it after the last piece as well.
    """

    iterations: int
    lines: Sequence[str]
    at_end: bool = True

    def if_due(self, more: str) -> list[str]:
        """Lines after a piece; ``more`` is true if another one follows."""
        return [*self.lines] if self.at_end else block(f"if ({more})", self.lines)


class LoopPrinter:
    """Opens and closes loops around what is printed inside."""

    def __init__(self, stack: ScopeStack, point: PointPrinter, statements: StatementPrinter) -> None:
        self.stack = stack
        self.point = point
        self.statements = statements

    def plain(
        self,
        loop: KernelLoop,
        inside: Inside,
        start: str = "0",
        stop: str = "",
        flush: Flush | None = None,
        unroll: str = "",
    ) -> None:
        """One iteration after the other.

        Args:
            start, stop: a piece of the loop's range; all of it unless given.
            unroll: number of iterations to write out, besides loops with a mode that asks for all of them.
        """
        name, stop = str(loop.index), stop or self.point.text(loop.extent)
        self.stack.open()
        lines = self.body(loop, inside)
        if loop.mode == "unrolled" or unroll:
            self.stack.emit(f"#pragma GCC unroll {unroll or self.point.text(loop.extent)}")
        if flush is None:
            self.stack.emit(*block(f"for (i64 {name} = {start}; {name} < {stop}; ++{name})", lines))
        else:
            end = f"const i64 {name}_stop = minimum({typed(stop)}, {name} + {flush.iterations});"
            piece = [end, *block(f"for (; {name} < {name}_stop; ++{name})", lines)]
            piece += flush.if_due(f"{name} < {stop}")
            self.stack.emit(*block(f"for (i64 {name} = {start}; {name} < {stop};)", piece))
        self.close_around(self.stack.has_values())

    def steps(self, loop: KernelLoop, inside: Inside, step: str, whole: bool) -> None:
        """Every ``step``-th iteration, up to the last whole step or to the end; leaves the index where it stopped."""
        name, stop = str(loop.index), self.point.text(loop.extent)
        last = f"{name} + {step} <= {stop}" if whole else f"{name} < {stop}"
        self.stack.emit(f"i64 {name} = 0;")
        lines = self.body(loop, inside)
        self.stack.emit(*block(f"for (; {last}; {name} += {step})", lines))

    def vector(
        self,
        loop: KernelLoop,
        inside: Inside,
        copies: int,
        start: str = "0",
        stop: str = "",
        flush: Flush | None = None,
    ) -> None:
        """A vector loop; see the module's docstring. ``start`` is a multiple of ``LARGEST_LANES``."""
        name, stop = str(loop.index), stop or self.point.text(loop.extent)
        around = self.statements.lanes
        self.stack.open()
        self.stack.emit(f"i64 {name} = {start};")
        lines = self._copies(loop, inside, tuple(Lane(loop.index, copy) for copy in range(copies)))
        step = "lanes" if copies == 1 else f"{copies} * lanes"
        whole = f"for (; {name} + {step} <= {stop}; {name} += {step})"
        if flush is None:
            self.stack.emit(*block(whole, lines))
        else:
            end = f"const i64 {name}_stop = minimum({typed(stop)}, {name} + {flush.iterations * copies} * lanes);"
            piece = block(f"for (; {name} + {step} <= {name}_stop; {name} += {step})", lines)
            more = f"{name} + {step} <= {stop}"
            self.stack.emit(*block(f"while ({more})", [end, *piece, *flush.if_due(more)]))
        if copies > 1 and not _is_multiple(loop, copies):
            lines = self._copies(loop, inside, (Lane(loop.index),))
            self.stack.emit(*block(f"for (; {name} + lanes <= {stop}; {name} += lanes)", lines))
        if not _is_multiple(loop, 1):
            lines = self._copies(loop, inside, (Lane(loop.index, count=f"{name}_rest"),))
            self.stack.emit(*block(f"if ({name} < {stop})", [f"const i64 {name}_rest = {stop} - {name};", *lines]))
        self.statements.lanes = around
        self.point.lane = around[0]
        self.close_around(True)

    def body(self, loop: KernelLoop, inside: Inside) -> list[str]:
        """Lines of the body of a loop that the caller prints."""
        self.stack.open(OpenLoop(loop.extent, self.point.text(loop.extent), self.point.depth(loop.extent)))
        self.point.enter(loop.index)
        inside()
        self.point.leave(loop.index)
        return self.stack.close()

    def close_around(self, needed: bool) -> None:
        """End the block around a loop; braces only where something is named in it."""
        lines = self.stack.close()
        self.stack.emit(*(block("", lines) if needed else lines))

    def _copies(self, loop: KernelLoop, inside: Inside, lanes: tuple[Lane, ...]) -> list[str]:
        def body() -> None:
            for lane in lanes[1:]:
                self.stack.emit(f"const i64 {copy_name(loop.index, lane.copy)} = {loop.index} + {lane.copy} * lanes;")
            inside()

        self.statements.lanes = lanes
        self.point.lane = lanes[0]
        return self.body(loop, body)


def block(head: str, lines: Sequence[str]) -> list[str]:
    """Lines in braces."""
    return [f"{head} {{".lstrip(), *(INDENT + line for line in lines), "}"]


def typed(extent: str) -> str:
    """An extent as an argument of a function: of type ``i64`` even if it is a number."""
    return f"{extent}ll" if extent.isdigit() else extent


def _is_multiple(loop: KernelLoop, copies: int) -> bool:
    """Whether nothing is left over, whatever the number of lanes."""
    return bool(loop.extent.is_Integer and int(loop.extent) % (LARGEST_LANES * copies) == 0)
