"""Packed products: a product of matrices becomes the template of a target that has no loops for it.

Place: first pass over stages for targets with the template ``product``.
Before and after, for panels of ``w`` columns::

    y[i, j] = sum over k of a[i, k] * b[k, j]     ->    p[n, k, l] = b[k, n w + l], or 0 beyond the last column
    z[i, j] = y[i, j] + c[j]                            z = product(a, p, c)

The packed matrix is a tensor of its own: of a constant it is made once, when a region is bound (``prepared``). Where a
reshape made rows of two dimensions of the left matrix, the product keeps them apart (``a[i // 5, i % 5, k]`` is read as
``a[n, i, k]``), and what it makes has three dimensions, too, so that nothing is copied.
Invariants: same values up to the order of summation. A bias joins where nobody else reads the sums.
Non-goals: whether packing pays; the backend takes products of constants alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, floor_div, index_symbol, modulo, substitute
from mixbackend.backends.codegen.ir.scalar import Apply, Expr, IndexValue, Load, apply, is_element
from mixbackend.backends.codegen.ir.stages import (
    GraphOutput,
    Loop,
    Map,
    Operand,
    Reduce,
    Result,
    Stage,
    StageGraph,
    Template,
    TensorType,
    is_product,
    targets_of,
)
from mixbackend.backends.codegen.ir.templates import PRODUCT, is_place
from mixbackend.backends.codegen.schedule.rewrite import map_stage, ranges_of, rewrite
from mixbackend.backends.codegen.schedule.simplify import loads_of
from mixbackend.backends.codegen.schedule.split_points import divides, quotient

_FLOAT_BYTES = 4
_WIDE_REGISTERS = 64
_VECTORS = {True: (3, 4), False: (2, 3)}
"""Registers of a panel's row, by whether registers are wide, of which there are more; the first is best."""


@dataclass(frozen=True)
class _Bias:
    """A row that is added to a product: the product, the stage that does it, and the row."""

    product: str
    stage: Map
    row: Load


def pack_products(graph: StageGraph, vector_bytes: int) -> StageGraph:
    """Make templates of all products of matrices.

    Args:
        vector_bytes: of a register of the target.
    """
    products = {stage.targets[0]: stage for stage in graph.stages if is_product(stage)}
    if not products:
        return graph
    packer = _Packer(graph, vector_bytes // _FLOAT_BYTES)
    biases = {bias.stage.target: bias for bias in _biases(graph, products.keys())}
    joined = {bias.product for bias in biases.values()}
    stages: list[Stage] = []
    for stage in graph.stages:
        bias = biases.get(stage.target) if isinstance(stage, Map) else None
        if bias is not None:
            stages += packer.packed(products[bias.product], bias)
        elif not is_product(stage):
            stages.append(stage)
        elif stage.targets[0] not in joined:
            stages += packer.packed(stage, None)
    types = {name: type_ for name, type_ in graph.types if name not in joined} | packer.types
    return replace(graph, stages=tuple(map(packer.reread, stages)), types=tuple(types.items()))


def panel_columns(columns: sympy.Expr, lanes: int) -> int:
    """Columns of a panel: as few as possible that are not there."""
    choices = [vectors * lanes for vectors in _VECTORS[lanes * _FLOAT_BYTES >= _WIDE_REGISTERS]]
    if not columns.is_Integer:
        return choices[0]
    return min(choices, key=lambda width: -(-int(columns) // width) * width)


class _Packer:
    """Makes the stages of one product after the other.

    Attributes:
        types: of the tensors that it makes, or makes in other dimensions.
    """

    def __init__(self, graph: StageGraph, lanes: int) -> None:
        self.types: dict[str, TensorType] = {}
        self._lanes = lanes
        self._ranges = ranges_of(graph.stages)
        self._symbols = (index_symbol(f"q{number}") for number in itertools.count())
        self._leaving = {item.tensor for item in graph.outputs if isinstance(item, GraphOutput)}
        self._rows: dict[str, sympy.Expr] = {}

    def packed(self, stage: Reduce, bias: _Bias | None) -> Iterator[Stage]:
        """What packs the right matrix, and the template."""
        assert isinstance(stage.value, Apply)
        left, right = stage.value.arguments
        assert isinstance(left, Load) and isinstance(right, Load)
        (target,), (term,) = targets_of(stage), stage.reduced
        row, column = stage.loops
        apart = self._apart(left, row, term)
        if apart is None:
            copied, copy = self._copied(f"{target}.left", left, (row, term), stage.origins)
            apart = self._loop(sympy.Integer(1)), row, copied
            yield copy
        batch, inner, read = apart
        panels = self._panels(term.size, column.size)
        held, copy = self._copied(
            f"{target}.packed", self._in_panels(right, term, column, panels), panels, stage.origins
        )
        yield copy
        operands = (Operand((batch, inner, term), read), Operand(panels, held), self._row(bias))
        made = target if bias is None else bias.stage.target
        result = self._result(made, (batch, inner, column))
        origins = stage.origins if bias is None else tuple(dict.fromkeys((*stage.origins, *bias.stage.origins)))
        yield Template(PRODUCT, operands, (result,), (("width", float(panels[-1].size)),), origins)

    def reread(self, stage: Stage) -> Stage:
        """A stage that reads what products make where they put it."""

        def once(node: Expr) -> Expr:
            rows = self._rows.get(node.tensor) if isinstance(node, Load) else None
            if rows is None or not isinstance(node, Load):
                return node
            row, column = node.index
            places = (floor_div(row, rows, self._ranges), modulo(row, rows, self._ranges), column)
            return replace(node, index=places)

        return map_stage(stage, lambda value: rewrite(value, once))

    def _apart(self, left: Load, row: Loop, term: Loop) -> tuple[Loop, Loop, Load] | None:
        """Loops over batches and rows in which the left matrix lies in memory, and how it is read, if it is in any."""
        divisors = {
            node.args[1] for part in left.index for node in part.atoms(FloorDiv, Modulo) if node.args[0] == row.index
        }
        rows = divisors.pop() if len(divisors) == 1 else row.size
        if not divides(rows, row.size):
            return None
        batch, inner = self._loop(quotient(row.size, rows)), self._loop(rows)
        place = {row.index: batch.index * rows + inner.index}
        read = replace(left, index=tuple(substitute(part, place, self._ranges) for part in left.index))
        return (batch, inner, read) if is_place(read, (batch, inner, term)) else None

    def _panels(self, terms: sympy.Expr, columns: sympy.Expr) -> tuple[Loop, Loop, Loop]:
        width = panel_columns(columns, self._lanes)
        sizes = (floor_div(columns + width - 1, width, self._ranges), terms, sympy.Integer(width))
        return self._loop(sizes[0]), self._loop(sizes[1]), self._loop(sizes[2])

    def _in_panels(self, right: Load, term: Loop, column: Loop, panels: tuple[Loop, Loop, Loop]) -> Load:
        """The right matrix at a place of its panels, 0 beyond the last column."""
        number, inner, lane = panels
        place = number.index * lane.size + lane.index
        turned = {column.index: place, term.index: inner.index}
        value = replace(right, index=tuple(substitute(part, turned, self._ranges) for part in right.index))
        if (column.size % lane.size) == 0:
            return value
        inside = apply("lt", IndexValue(torch.int64, place), IndexValue(torch.int64, column.size))
        return replace(value, mask=inside)

    def _result(self, target: str, loops: tuple[Loop, Loop, Loop]) -> Result:
        batch, row, column = loops
        if target in self._leaving:
            return Result(target, loops, (batch.index * row.size + row.index, column.index))
        self._rows[target] = row.size
        self.types[target] = TensorType(tuple(loop.size for loop in loops), torch.float32)
        return Result(target, loops, tuple(loop.index for loop in loops))

    def _row(self, bias: _Bias | None) -> Operand | None:
        return None if bias is None else Operand(bias.stage.loops[1:], bias.row)

    def _copied(self, name: str, value: Load, loops: tuple[Loop, ...], origins: tuple[str, ...]) -> tuple[Load, Map]:
        """A tensor of its own, and how it is read."""
        self.types[name] = TensorType(tuple(loop.size for loop in loops), torch.float32)
        made = Map(name, loops, value, origins, apart=True)
        return Load(torch.float32, name, tuple(loop.index for loop in loops)), made

    def _loop(self, size: sympy.Expr) -> Loop:
        index = next(self._symbols)
        self._ranges[index] = size
        return Loop(index, size)


def _biases(graph: StageGraph, products: Collection[str | None]) -> Iterator[_Bias]:
    """Rows that are added to products which nobody else reads."""
    readers = Counter(name for stage in graph.stages for name in {load.tensor for load in loads_of(stage)})
    outputs = {item.tensor for item in graph.outputs if isinstance(item, GraphOutput)}
    types = dict(graph.types)
    for stage in graph.stages:
        bias = _sum_with_row(stage)
        if bias is None or bias.product not in products or bias.product in outputs or readers[bias.product] > 1:
            continue
        floats = all(types[name].dtype == torch.float32 for name in (bias.row.tensor, bias.stage.target))
        if floats and types[bias.product].sizes == types[bias.stage.target].sizes:
            yield bias


def _sum_with_row(stage: Stage) -> _Bias | None:
    """The parts of ``product[i, j] + row[j]``."""
    if not isinstance(stage, Map) or stage.apart or len(stage.loops) != 2:
        return None
    value, here = stage.value, tuple(loop.index for loop in stage.loops)
    if not isinstance(value, Apply) or value.op != "add":
        return None
    for made, row in (value.arguments, value.arguments[::-1]):
        if not is_element(made) or made.index != here or not isinstance(row, Load) or row.tensor == made.tensor:
            continue
        varies = {symbol for part in row.index for symbol in part.free_symbols}
        if here[0] not in varies and is_place(row, stage.loops[1:]):
            return _Bias(made.tensor, stage, row)
    return None
