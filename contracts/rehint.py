"""The same op graph, described at other sizes.

Place: between ``graph.describe`` and the partitioner, where a graph with symbolic sizes is priced for other sizes
than those of its first call. Input: an ``OpGraph`` and values of some of its symbols. Output: an equal graph but for
the hints of its sizes; sizes that are expressions of these symbols follow.
Invariants: pure; adds no guard; shapes, strides, arguments and operators stay what they are, so a plan of one graph is
a plan of the other.
Non-goals: conditions between symbols that no range shows (a multiple of 8, one equal to another): hints are estimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy

from mixbackend.contracts.graph import GraphInput, OpGraph
from mixbackend.contracts.ops import Argument, OpNode, OpView, ValueMeta
from mixbackend.contracts.sizes import Size, SymbolicSize
from mixbackend.contracts.tensors import TensorMeta

Hints = Mapping[sympy.Symbol, int]
"""Values of symbols, by symbol."""


class ImpossibleSizesError(ValueError):
    """No run can have these values: some size would be negative, outside of its range, or divided by 0."""


def symbols_of(graph: OpGraph) -> dict[sympy.Symbol, SymbolicSize]:
    """The symbols that a graph shows by themselves, with hint and range, in order of first appearance."""
    found: dict[sympy.Symbol, SymbolicSize] = {}
    for size in _sizes(graph):
        if size.expression.is_Symbol:
            found.setdefault(size.expression, size)
    return found


def with_hints(graph: OpGraph, hints: Hints) -> OpGraph:
    """A graph as if it had been captured at these values of its symbols.

    Args:
        graph: what to describe again; symbols that are not named keep their hints.
        hints: by symbol.

    Raises:
        ImpossibleSizesError: a size would be negative, outside of its range, or divided by 0.
    """
    if not hints:
        return graph
    known = {symbol: size.hint for symbol, size in symbols_of(graph).items() if size.hint is not None}
    return _Rewriter({**known, **hints}, frozenset(hints)).graph(graph)


def _sizes(graph: OpGraph) -> Iterator[SymbolicSize]:
    metas = [item.meta for item in graph.inputs] + [meta for node in graph.nodes for meta in node.outputs]
    for meta in metas:
        parts = (*meta.shape, *meta.stride) if isinstance(meta, TensorMeta) else (meta,)
        yield from (part for part in parts if isinstance(part, SymbolicSize))


class _Rewriter:
    """Writes each distinct size and meta once."""

    def __init__(self, values: Mapping[sympy.Symbol, int], changed: frozenset[sympy.Symbol]) -> None:
        self._values = {symbol: sympy.Integer(value) for symbol, value in values.items()}
        self._changed = changed
        self._sizes: dict[SymbolicSize, SymbolicSize] = {}
        self._metas: dict[TensorMeta, TensorMeta] = {}

    def graph(self, graph: OpGraph) -> OpGraph:
        inputs = tuple(self._input(item) for item in graph.inputs)
        return replace(graph, inputs=inputs, nodes=tuple(self._node(node) for node in graph.nodes))

    def _input(self, item: GraphInput) -> GraphInput:
        return replace(item, meta=self._meta(item.meta))

    def _node(self, node: OpNode) -> OpNode:
        arguments = tuple((name, self._argument(value)) for name, value in node.arguments)
        bodies = tuple(replace(body, views=tuple(map(self._inner, body.views))) for body in node.bodies)
        return replace(node, arguments=arguments, outputs=tuple(map(self._meta, node.outputs)), bodies=bodies)

    def _inner(self, view: OpView) -> OpView:
        """An op of a body."""
        inputs = tuple(replace(item, meta=self._meta(item.meta)) for item in view.inputs)
        return replace(view, node=self._node(view.node), inputs=inputs)

    def _argument(self, value: Argument) -> Argument:
        if isinstance(value, tuple):
            return tuple(map(self._argument, value))
        return self._size(value) if isinstance(value, SymbolicSize) else value

    def _meta(self, meta: ValueMeta) -> ValueMeta:
        if isinstance(meta, SymbolicSize):
            return self._size(meta)
        if not isinstance(meta, TensorMeta):
            return meta
        if meta not in self._metas:
            self._metas[meta] = replace(
                meta, shape=tuple(map(self._extent, meta.shape)), stride=tuple(map(self._any, meta.stride))
            )
        return self._metas[meta]

    def _extent(self, size: Size) -> Size:
        changed = self._any(size)
        if isinstance(changed, SymbolicSize) and changed.hint is not None and changed.hint < 0:
            raise ImpossibleSizesError(f"size {changed} would be {changed.hint}")
        return changed

    def _any(self, size: Size) -> Size:
        return self._size(size) if isinstance(size, SymbolicSize) else size

    def _size(self, size: SymbolicSize) -> SymbolicSize:
        if size not in self._sizes:
            self._sizes[size] = self._rewritten(size)
        return self._sizes[size]

    def _rewritten(self, size: SymbolicSize) -> SymbolicSize:
        symbols = size.expression.free_symbols
        if size.hint is None or not symbols & self._changed or not symbols <= self._values.keys():
            return size
        try:
            value = size.expression.xreplace(self._values)
        except ZeroDivisionError as error:
            raise ImpossibleSizesError(f"{size} would be divided by 0") from error
        try:
            hint = int(bool(value)) if value in (sympy.true, sympy.false) else int(value)
        except (TypeError, ValueError, OverflowError):
            # Not a number even so: an estimate stays what it was.
            return size
        beyond = size.upper is not None and hint > size.upper
        if size.expression.is_Symbol and (hint < size.lower or beyond):
            raise ImpossibleSizesError(f"{size} would be {hint}, its range is {size.lower} to {size.upper}")
        return replace(size, hint=hint)
