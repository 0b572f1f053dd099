"""Lines of a kernel, and the values that they compute.

Place: used by ``values`` and ``nests``. A kernel is a frame, or two while a row is walked piece by piece.
Invariants: equal text is written once and its name used again, as long as what it read is unchanged; what does not
depend on a row that is walked goes before its loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import sympy
import torch

from mixbackend.backends.codegen.targets.triton.space import NOWHERE, Axes


@dataclass(frozen=True)
class Value:
    """A variable.

    Attributes:
        text: its name, or a short expression.
        axes: that it depends on.
        buffers: that were read for it.
    """

    text: str
    dtype: torch.dtype
    axes: Axes = NOWHERE
    buffers: frozenset[str] = frozenset()


@dataclass
class _Frame:
    """Lines at one depth; ``rows`` are the axes that the loop they are in counts."""

    depth: int
    rows: Axes
    lines: list[str] = field(default_factory=list)
    known: dict[str, Value] = field(default_factory=dict)
    stored: dict[tuple[str, sympy.Expr], Value] = field(default_factory=dict)


class Lines:
    """What is written so far."""

    def __init__(self) -> None:
        self._frames = [_Frame(1, NOWHERE)]
        self._count = 0

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self._frames[0].lines)

    def open(self, head: str, *rows: str) -> None:
        """Begin a loop along a row, under all its names."""
        frame = self._frames[-1]
        self._frames.append(_Frame(frame.depth + 1, frozenset(rows), [_indented(head, frame.depth)]))

    def close(self) -> None:
        """End the loop: what was computed in it is not known behind it."""
        frame = self._frames.pop()
        self._frames[-1].lines += frame.lines

    def add(self, line: str) -> None:
        """A line that is executed where it stands."""
        frame = self._frames[-1]
        frame.lines.append(_indented(line, frame.depth))

    def before(self, line: str) -> None:
        """A line outside of all loops."""
        self._frames[0].lines.append(_indented(line, 1))

    def name(self) -> str:
        """A name that is not in use."""
        self._count += 1
        return f"t{self._count - 1}"

    def value(self, text: str, dtype: torch.dtype, axes: Axes, buffers: Iterable[str] = ()) -> Value:
        """The variable that holds what a text computes."""
        frame = next(frame for frame in reversed(self._frames) if not frame.rows or frame.rows & axes)
        for place in self._frames:
            if text in place.known:
                return place.known[text]
        made = Value(self.name(), dtype, axes, frozenset(buffers))
        frame.lines.append(_indented(f"{made.text} = {text}", frame.depth))
        frame.known[text] = made
        return made

    def store(self, buffer: str, offset: sympy.Expr | None, value: Value | None) -> None:
        """Note that memory changed, and what is known of it."""
        for frame in self._frames:
            frame.known = {text: known for text, known in frame.known.items() if buffer not in known.buffers}
            frame.stored = {place: known for place, known in frame.stored.items() if place[0] != buffer}
        if offset is not None and value is not None:
            self._frames[-1].stored[buffer, offset] = value

    def stored(self, buffer: str, offset: sympy.Expr) -> Value | None:
        """What was stored there in this kernel, if it is still in registers."""
        for frame in self._frames:
            if (buffer, offset) in frame.stored:
                return frame.stored[buffer, offset]
        return None


def _indented(line: str, depth: int) -> str:
    return "    " * depth + line
