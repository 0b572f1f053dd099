"""Blocks of C++ while they are written, and which values are already named in them.

Place: below the printers of values and loops.
Invariants: a value is named once in a block and everywhere inside it. A value goes to the outermost block where
everything it is made of is known, just before the loop that encloses its first use: loops repeat nothing they need not
repeat. What must not run where a loop has no iterations (reading memory) says so and is guarded by the extents of the
loops it left.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import sympy
import torch

INDENT = "    "


@dataclass(frozen=True)
class Value:
    """A printed value.

    Attributes:
        text: an atom: a name, a literal or a call without effects.
        dtype: compute type.
        depth: of the block it is known in.
        varying: whether it is a vector with a value per lane.
        buffers: memory written in the same nest that it was read from.
    """

    text: str
    dtype: torch.dtype
    depth: int
    varying: bool = False
    buffers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class OpenLoop:
    """The loop that a block is the body of: its extent for guards, and how deep that changes."""

    extent: sympy.Expr
    text: str
    depth: int


@dataclass
class Scope:
    """One block: its lines, the values named in it, and the loop it is the body of."""

    lines: list[str] = field(default_factory=list)
    values: dict[Hashable, Value] = field(default_factory=dict)
    loop: OpenLoop | None = None


class ScopeStack:
    """The blocks around the current position, outermost first. Indices of blocks are called depths."""

    def __init__(self) -> None:
        self._scopes = [Scope()]
        self._names = 0

    @property
    def depth(self) -> int:
        """Of the current block."""
        return len(self._scopes) - 1

    def open(self, loop: OpenLoop | None = None) -> None:
        """Begin a block."""
        self._scopes.append(Scope(loop=loop))

    def close(self) -> list[str]:
        """End the current block and take its lines."""
        return self._scopes.pop().lines

    def emit(self, *lines: str) -> None:
        """Add lines to the current block."""
        self._scopes[-1].lines.extend(lines)

    def fresh(self) -> str:
        """A new name."""
        self._names += 1
        return f"t{self._names - 1}"

    def known(self, key: Hashable) -> Value | None:
        """A value named in the current block or around it."""
        for scope in reversed(self._scopes):
            if key in scope.values:
                return scope.values[key]
        return None

    def forget(self, buffer: str) -> None:
        """Values read from this memory may have changed."""
        for scope in self._scopes:
            scope.values = {key: value for key, value in scope.values.items() if buffer not in value.buffers}

    def home(self, depth: int) -> int:
        """Block in which to name a value made of what is known at ``depth``."""
        # The block before a loop, rather than the one around it: its values are named for that loop alone.
        is_body = self._scopes[depth].loop is not None or depth == 0
        return depth if depth == self.depth or not is_body else depth + 1

    def safe_home(self, depth: int) -> tuple[int, tuple[str, ...]]:
        """As ``home`` for what may run only if all loops around the current position have iterations.

        Returns:
            The block, and the conditions that say so there.
        """
        home = self.home(depth)
        for inner in range(self.depth, home, -1):
            loop = self._scopes[inner].loop
            if loop is not None and loop.depth > home:
                # Whether this loop runs is known only inside: stay in the block before it.
                home = max(home, self.home(loop.depth))
        crossed = [scope.loop for scope in self._scopes[home + 1 :] if scope.loop is not None]
        guards = [f"{loop.text} > 0" for loop in crossed if not (loop.extent.is_Integer and loop.extent > 0)]
        return home, tuple(dict.fromkeys(guards))

    def define(self, key: Hashable, text: str, value: Value) -> Value:
        """Name a value in the block ``value.depth``; its text becomes the name."""
        name = self.fresh()
        named = Value(name, value.dtype, value.depth, value.varying, value.buffers)
        scope = self._scopes[value.depth]
        scope.lines.append(f"const auto {name} = {text};")
        scope.values[key] = named
        return named

    def alias(self, key: Hashable, value: Value) -> None:
        """Know a value in the current block under the text it has."""
        self._scopes[-1].values[key] = value

    def has_values(self) -> bool:
        """Whether the current block names anything."""
        return bool(self._scopes[-1].values)
