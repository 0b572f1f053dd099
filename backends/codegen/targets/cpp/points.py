"""The point that statements are printed for: which loops are open, and how indices move along the lanes of a vector.

Place: between the blocks (``scopes``) and the printers of memory and values.
Invariants: a symbol that is not the index of an open loop of the nest (a parameter, an outer index) is known at depth 0
under its own name.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal

import sympy
import torch

from mixbackend.backends.codegen.targets.cpp.indices import index_text, lane_step, vector_text
from mixbackend.backends.codegen.targets.cpp.literals import compute_type, literal
from mixbackend.backends.codegen.targets.cpp.scopes import ScopeStack, Value

Bound = Mapping[sympy.Symbol, Value]
"""Run-time integers that symbols of an offset stand for."""


@dataclass(frozen=True)
class Lane:
    """Which points one copy of the statements computes.

    Attributes:
        vector: index that the lanes count; ``None`` for one point at a time.
        copy: number of the copy: copy 1 computes the points ``lanes`` after those of copy 0.
        count: how many lanes are in use, ``None`` for all.
    """

    vector: sympy.Symbol | None = None
    copy: int = 0
    count: str | None = None

    @property
    def first(self) -> str:
        """Name of the index of the first lane."""
        return copy_name(self.vector, self.copy)


def copy_name(vector: sympy.Symbol | None, copy: int) -> str:
    """Name of the first index of a copy."""
    return f"{vector}" if copy == 0 else f"{vector}_{copy}"


@dataclass(frozen=True)
class Access:
    """How the lanes of a vector touch memory.

    Attributes:
        kind: ``same`` element for all, ``contiguous``, ``strided`` or ``gathered``.
        start: offset of the first lane; for ``gathered`` the part that is the same for all lanes.
        step: elements from lane to lane, if ``strided``.
        offsets: the rest of the offset of each lane, if ``gathered``.
    """

    kind: Literal["same", "contiguous", "strided", "gathered"]
    start: str
    step: str = ""
    offsets: Value | None = None


class PointPrinter:
    """Prints indices at the current point and names values where they belong."""

    def __init__(self, stack: ScopeStack) -> None:
        self.stack = stack
        self.lane = Lane()
        self._depths: dict[sympy.Symbol, int] = {}

    def enter(self, index: sympy.Symbol) -> None:
        """The current block is the body of a loop over this index."""
        self._depths[index] = self.stack.depth

    def leave(self, index: sympy.Symbol) -> None:
        """That loop is closed."""
        del self._depths[index]

    # -- indices --------------------------------------------------------------------------------------------------

    def depth(self, expression: sympy.Expr, bound: Bound | None = None) -> int:
        """Where an index expression is known."""
        bound = bound or {}
        return max(
            (bound[s].depth if s in bound else self._depths.get(s, 0) for s in expression.free_symbols), default=0
        )

    def varies(self, expression: sympy.Expr, bound: Bound | None = None) -> bool:
        """Whether it differs between lanes."""
        return any(self._is_lane(symbol, bound or {}) for symbol in expression.free_symbols)

    def text(self, expression: sympy.Expr, bound: Bound | None = None) -> str:
        """Its value, of type ``i64``; at the first lane if it varies."""

        def name(symbol: sympy.Symbol) -> str:
            if symbol in (bound or {}):
                return _as_index((bound or {})[symbol])
            return self.lane.first if symbol == self.lane.vector else str(symbol)

        text = index_text(expression, name, lambda part: self.depth(part, bound))
        return text[1:-1] if expression.is_Add and text.startswith("(") else text

    def lanes_text(self, expression: sympy.Expr, bound: Bound | None = None) -> str:
        """Its values in all lanes, of type ``Vec<i64>``."""

        def vector(symbol: sympy.Symbol) -> str:
            if not self._is_lane(symbol, bound or {}):
                return ""
            return f"iota<i64>({self.lane.first})" if symbol == self.lane.vector else _as_index((bound or {})[symbol])

        def scalar(symbol: sympy.Symbol) -> str:
            return _as_index((bound or {})[symbol]) if symbol in (bound or {}) else str(symbol)

        return vector_text(expression, vector, lambda part: self.depth(part, bound), scalar)

    def _is_lane(self, symbol: sympy.Symbol, bound: Bound) -> bool:
        return bound[symbol].varying if symbol in bound else symbol == self.lane.vector

    # -- memory ---------------------------------------------------------------------------------------------------

    def access(self, offset: sympy.Expr, bound: Bound) -> Access:
        """How the lanes move through memory."""
        step = self.step(offset, bound)
        if step == 0:
            return Access("same", self.text(offset, bound))
        if step == 1:
            return Access("contiguous", self.text(offset, bound))
        if step is not None:
            return Access("strided", self.text(offset, bound), self.text(step, bound))
        terms = sympy.Add.make_args(sympy.expand(offset))
        shared = sympy.Add(*(term for term in terms if not self.varies(term, bound)))
        return Access("gathered", self.text(shared, bound), offsets=self._offsets(offset - shared, bound))

    def step(self, offset: sympy.Expr, bound: Bound) -> sympy.Expr | None:
        """Elements from lane to lane; ``None`` if that is no one number."""
        if self.lane.vector is None:
            return sympy.Integer(0)
        if any(bound[symbol].varying for symbol in offset.free_symbols & bound.keys()):
            return None
        return lane_step(offset, self.lane.vector)

    def _offsets(self, offset: sympy.Expr, bound: Bound) -> Value:
        parts = [bound[symbol] for symbol in sorted(offset.free_symbols & bound.keys(), key=str)]
        key = ("offsets", offset, tuple(part.text for part in parts))
        buffers = frozenset().union(*(part.buffers for part in parts))
        return self.name(key, self.lanes_text(offset, bound), torch.int64, self.depth(offset, bound), True, buffers)

    # -- names ----------------------------------------------------------------------------------------------------

    def known(self, key: Hashable) -> Value | None:
        """A value that has a name already: the same for all copies, or that of the current one."""
        return self.stack.known((key, None)) or self.stack.known((key, self.lane.copy))

    def name(
        self,
        key: Hashable,
        text: str,
        dtype: torch.dtype,
        depth: int,
        varying: bool = False,
        buffers: frozenset[str] = frozenset(),
        otherwise: str = "",
    ) -> Value:
        """Name a value in the outermost block it can be in, unless it has a name.

        Args:
            key: what is computed; equal keys are equal values.
            text: how.
            dtype: compute type.
            depth: where all of it is known.
            varying: whether lanes differ.
            buffers: memory that may change under it: it is not moved out of the current block.
            otherwise: value if the loops it leaves have no iterations; empty if it may be computed anyway.
        """
        known = self.known(key)
        if known is not None:
            return known
        depth = self.stack.depth if buffers else depth
        home, guards = self.stack.safe_home(depth) if otherwise else (self.stack.home(depth), ())
        if guards:
            text = f"({' && '.join(guards)}) ? {text} : {otherwise}"
        value = Value("", dtype, home, varying, buffers)
        return self.stack.define((key, self.lane.copy if varying else None), text, value)

    def alias(self, key: Hashable, value: Value) -> None:
        """In the current block, a value for this copy is known already."""
        self.stack.alias((key, self.lane.copy), value)

    def broadcast(self, value: Value) -> str:
        """As a vector, where values are vectors."""
        if value.varying or self.lane.vector is None:
            return value.text
        function = "broadcast_mask" if value.dtype == torch.bool else f"broadcast<{compute_type(value.dtype)}>"
        return f"{function}({value.text})"

    def constant(self, number: float, dtype: torch.dtype, varying: bool) -> str:
        """A number, in all lanes if ``varying``."""
        value = Value(literal(number, dtype), dtype, 0)
        return self.broadcast(value) if varying else value.text

    def active(self) -> str:
        """Mask of the lanes in use; only where ``lane.count`` is set."""
        assert self.lane.count is not None and self.lane.vector is not None
        depth = self._depths[self.lane.vector]
        return self.name("active", f"first_lanes({self.lane.count})", torch.bool, depth, True).text


def _as_index(value: Value) -> str:
    return value.text if value.dtype == torch.int64 else f"convert<i64>({value.text})"
