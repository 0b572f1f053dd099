"""Packed products: a product of matrices becomes the template of a target that has no loops for it.

Place: first pass over stages for targets with the template ``product``.
Before and after, for panels of ``w`` columns::

    y[i, j] = sum over k of a[i, k] * b[k, j]     ->    p[n, k, l] = b[k, n w + l], or 0 beyond the last column
    z[i, j] = y[i, j] + c[j]                            z = product(a, p, c)

The packed matrix is a tensor of its own: of a constant it is made once, when a region is bound (``prepared``). Where a
reshape made rows of two dimensions of the left matrix, the product keeps them apart (``a[i // 5, i % 5, k]`` is read as
``a[n, i, k]``), and what it makes has three dimensions, too, so that nothing is copied. Windows of an image are rows
and terms of three dimensions each, read where they lie, overlapping as they do; an image with channels that are not
innermost is copied into that order first.
Matrices of 16-bit floats are packed as they are and widened in registers; the left one is widened before, and sums,
which are float32, are rounded after the template. A right matrix that is a conversion of integers of 8 bits is packed
as these: the conversion of a quantised weight is exact, and its copy would be two or four times as large. One that is
computed of codes with scales and offsets of groups is packed as these three (``panels_of_weights``).
Invariants: same values up to the order of summation. A bias joins where nothing else reads the sums.
Non-goals: whether packing pays; the backend takes products of constants alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import rewrite
from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo, floor_div, index_symbol, modulo, substitute
from mixbackend.backends.codegen.ir.products import COLUMN, NARROW, MatrixProduct, matrix_product
from mixbackend.backends.codegen.ir.scalar import Apply, Expr, IndexValue, Load, compute_dtype, is_element
from mixbackend.backends.codegen.ir.stages import (
    Concatenate,
    GraphOutput,
    Loop,
    Map,
    Operand,
    Result,
    Stage,
    StageGraph,
    Template,
    TensorType,
    given_strides,
    targets_of,
)
from mixbackend.backends.codegen.ir.templates import PRODUCT, PRODUCT_DIMENSIONS, is_place
from mixbackend.backends.codegen.schedule.panels import panel_columns
from mixbackend.backends.codegen.schedule.panels_of_weights import WeightPanels, weight_of
from mixbackend.backends.codegen.schedule.rewrite import ranges_of, readers_of, with_indices
from mixbackend.backends.codegen.schedule.split_points import divides, quotient


@dataclass(frozen=True)
class _Bias:
    """A row that is added to a product: the product, the stage that does it, and the row."""

    product: str
    stage: Map
    row: Load


@dataclass(frozen=True)
class _Apart:
    """Dimensions of the rows of a left matrix, and how it is read in them."""

    rows: tuple[Loop, ...]
    left: Load


def pack_products(graph: StageGraph, vector_bytes: int) -> StageGraph:
    """Make templates of all products of matrices.

    Args:
        vector_bytes: of a register of the target.
    """
    products = {name: found for stage in graph.stages if (found := matrix_product(stage)) for name in targets_of(stage)}
    if not products:
        return graph
    types = dict(graph.types)
    widened = {stage.target: stage for stage in graph.stages if isinstance(stage, Map) and _widens(stage, types)}
    products = {name: _as_stored(product, widened) for name, product in products.items()}
    packer = _Packer(graph, vector_bytes // torch.float32.itemsize)
    biases = {bias.stage.target: bias for bias in _biases(graph, products.keys())}
    joined = {bias.product for bias in biases.values()}
    stages: list[Stage] = []
    for stage in graph.stages:
        (target, *_) = targets_of(stage)
        if target in biases:
            stages += packer.packed(products[biases[target].product], stage, biases[target])
        elif target not in products:
            stages.append(stage)
        elif target not in joined:
            stages += packer.packed(products[target], stage, None)
    types = {name: type_ for name, type_ in types.items() if name not in joined} | packer.types
    return replace(graph, stages=tuple(map(packer.reread, stages)), types=tuple(types.items()))


class _Packer:
    """Makes the stages of one product after the other.

    Attributes:
        types: of the tensors that it makes, or makes in other dimensions.
    """

    def __init__(self, graph: StageGraph, lanes: int) -> None:
        self.types: dict[str, TensorType] = {}
        self._known = dict(graph.types)
        self._lanes = lanes
        self._ranges = ranges_of(graph.stages)
        self._symbols = (index_symbol(f"q{number}") for number in itertools.count())
        self._strides = given_strides(graph)
        self._rows_apart: dict[str, sympy.Expr] = {}
        makers = (stage for stage in graph.stages if isinstance(stage, (Map, Concatenate)))
        self._makers = {stage.target: stage for stage in makers}

    def packed(self, product: MatrixProduct, stage: Stage, bias: _Bias | None) -> Iterator[Stage]:
        """What packs the right matrix, and the template.

        Args:
            stage: the product takes its target; it is the product itself, or the sum with a bias.
        """
        (target,), origins = targets_of(stage), tuple(dict.fromkeys((*product.origins, *stage.origins)))
        apart = self._apart(product) or _Apart(product.rows, product.left)
        left, copy = self._in_order(f"{target}.left", apart, product.terms, origins)
        if copy is not None:
            yield copy
        rows, terms = self._rows(apart.rows), self._terms(product.terms)
        panels = self._panels(terms, product.column.size)
        row = None if bias is None else Operand(bias.stage.loops[1:2], bias.row)
        weight = weight_of(product, self._makers, self._ranges)
        if weight is None:
            value = self._in_panels(product, panels)
            stored = self._known[value.tensor].dtype
            held, copy = self._copied(f"{target}.packed", value, panels, origins, stored)
            yield copy
            packed, scales, offsets, bits, group = self._whole(held, panels), None, None, 0, 0
        else:
            shelf = WeightPanels(weight, product, panels[-1].size, self._ranges)
            copies, packed, scales, offsets = self._grouped(target, shelf, panels, origins)
            yield from copies
            bits, group = shelf.bits, weight.group
        operands = (Operand((*rows, *terms), left), packed, row, scales, offsets)
        options = (("width", float(panels[-1].size)), ("bits", float(bits)), ("group", float(group)))
        changes = self._leaves_changed(target, product)
        made = f"{target}.sums" if changes else target
        result = self._result(made, product, rows)
        yield Template(PRODUCT, operands, (result,), options, origins)
        if changes:
            yield self._changed(target, made, origins)

    def _grouped(
        self, target: str, shelf: WeightPanels, panels: tuple[Loop, ...], origins: tuple[str, ...]
    ) -> tuple[list[Map], Operand, Operand | None, Operand | None]:
        """Copies that hold a weight in groups, and the operands that are these."""
        number, *windows, lane = panels
        words = (number, *windows[:-1], self._loop(shelf.rows), lane)
        groups = (self._loop(number.size), self._loop(shelf.groups), self._loop(lane.size))
        copies: list[Map] = []
        operands: list[Operand | None] = []
        parts = (
            ("packed", shelf.codes((words[0], *words[-2:])), words, shelf.dtype),
            ("scales", shelf.scales(groups), groups, torch.float32),
            ("offsets", shelf.offsets(groups), groups, torch.float32),
        )
        for name, value, loops, stored in parts:
            if value is None:
                operands.append(None)
                continue
            mine = tuple(self._loop(loop.size) for loop in loops)
            moved = {loop.index: own.index for loop, own in zip(loops, mine, strict=True)}
            value = with_indices(value, moved, self._ranges)
            held, copy = self._copied(f"{target}.{name}", value, mine, origins, stored)
            copies.append(copy)
            operands.append(self._whole(held, mine))
        packed, scales, offsets = operands
        assert packed is not None
        return copies, packed, scales, offsets

    def reread(self, stage: Stage) -> Stage:
        """A stage that reads what products make where they put it."""

        def once(node: Expr) -> Expr:
            rows = self._rows_apart.get(node.tensor) if isinstance(node, Load) else None
            if rows is None or not isinstance(node, Load):
                return node
            row, column = node.index
            places = (floor_div(row, rows, self._ranges), modulo(row, rows, self._ranges), column)
            return replace(node, index=places)

        return rewrite(stage, once)

    def _apart(self, product: MatrixProduct) -> _Apart | None:
        """Batches and rows in which the left matrix lies in memory, where a reshape made its rows of them."""
        if len(product.rows) > 1:
            return None
        (row,), left = product.rows, product.left
        divisors = {
            node.args[1] for part in left.index for node in part.atoms(FloorDiv, Modulo) if node.args[0] == row.index
        }
        rows = divisors.pop() if len(divisors) == 1 else row.size
        if not divides(rows, row.size):
            return None
        batch, inner = self._loop(quotient(row.size, rows)), self._loop(rows)
        place = {row.index: batch.index * rows + inner.index}
        read = replace(left, index=tuple(substitute(part, place, self._ranges) for part in left.index))
        return _Apart((batch, inner), read) if is_place(read, (batch, inner, *product.terms)) else None

    def _in_order(
        self, name: str, apart: _Apart, terms: tuple[Loop, ...], origins: tuple[str, ...]
    ) -> tuple[Load, Map | None]:
        """The left matrix with its terms one after the other, and the copy that this takes."""
        left, loops = apart.left, (*apart.rows, *terms)
        if not is_place(left, loops) or self._known[left.tensor].dtype != torch.float32:
            mine = tuple(self._loop(loop.size) for loop in loops)
            moved = {loop.index: own.index for loop, own in zip(loops, mine, strict=True)}
            index = tuple(substitute(part, moved, self._ranges) for part in left.index)
            copied, copy = self._copied(name, replace(left, index=index), mine, origins)
            return replace(copied, index=tuple(loop.index for loop in loops)), copy
        last = terms[-1]
        places = [place for place, part in enumerate(left.index) if last.index in part.free_symbols]
        strides = self._strides.get(left.tensor)
        if strides is None or last.size == 1 or len(places) != 1:
            return left, None
        (inner,) = places
        if strides[inner] * left.index[inner].coeff(last.index) == 1:
            return left, None
        order = [*(place for place in range(len(left.index)) if place != inner), inner]
        whole = [self._loop(size) for size in self._known[left.tensor].sizes]
        value = replace(left, index=tuple(loop.index for loop in whole))
        copied, copy = self._copied(name, value, tuple(whole[place] for place in order), origins)
        return replace(copied, index=tuple(left.index[place] for place in order)), copy

    def _rows(self, rows: tuple[Loop, ...]) -> tuple[Loop, ...]:
        """Batch, line and place; with two dimensions, as of a matrix or a signal, there is one line."""
        missing = (self._loop(sympy.Integer(1)) for _ in range(PRODUCT_DIMENSIONS - len(rows)))
        return (rows[0], *missing, *rows[1:])

    def _terms(self, terms: tuple[Loop, ...]) -> tuple[Loop, ...]:
        """Line and place of a window, and terms there; what is missing is missing first."""
        return (*(self._loop(sympy.Integer(1)) for _ in range(PRODUCT_DIMENSIONS - len(terms))), *terms)

    def _panels(self, terms: tuple[Loop, ...], columns: sympy.Expr) -> tuple[Loop, ...]:
        width = panel_columns(columns, self._lanes)
        count = floor_div(columns + width - 1, width, self._ranges)
        return tuple(map(self._loop, (count, *(term.size for term in terms), sympy.Integer(width))))

    def _in_panels(self, product: MatrixProduct, panels: tuple[Loop, ...]) -> Load:
        """The right matrix at a place of its panels, 0 beyond the last column."""
        number, *inner, lane = panels
        column, right = product.column, product.right
        place = number.index * lane.size + lane.index
        terms = zip(product.terms, inner[-len(product.terms) :], strict=True)
        turned = {column.index: place, **{term.index: loop.index for term, loop in terms}}
        value = replace(right, index=tuple(substitute(part, turned, self._ranges) for part in right.index))
        if (column.size % lane.size) == 0:
            return value
        inside = IndexValue(torch.int64, place) < IndexValue(torch.int64, column.size)
        return replace(value, mask=inside)

    def _leaves_changed(self, target: str, product: MatrixProduct) -> bool:
        """Whether a result leaves in another type than sums have, or with other elements beside each other than those
        of a row."""
        strides = self._strides.get(target)
        turned = strides is not None and product.column.size != 1 and strides[COLUMN] != 1
        return turned or self._known[target].dtype != torch.float32

    def _changed(self, target: str, made: str, origins: tuple[str, ...]) -> Map:
        """The copy of sums that lie row by row, in the order and type in which the result leaves."""
        sizes = self._known[target].sizes
        loops = tuple(map(self._loop, sizes))
        self.types.setdefault(made, TensorType(sizes, torch.float32))
        # Of a matrix ``_result`` has said how rows lie, and ``reread`` finds them; an image lies in memory as it is.
        read = Load(torch.float32, made, tuple(loop.index for loop in loops))
        return Map(target, loops, read, origins)

    def _result(self, target: str, product: MatrixProduct, rows: tuple[Loop, ...]) -> Result:
        """Where sums go: rows that were kept apart stay so, unless the result leaves."""
        loops = tuple(map(self._loop, (*(loop.size for loop in rows), product.column.size)))
        batch, line, place, column = (loop.index for loop in loops)
        if len(product.rows) > 1:
            places = (line, place)[-(len(product.rows) - 1) :]
            return Result(target, loops, (batch, column, *places))
        if target in self._strides:
            return Result(target, loops, (batch * rows[-1].size + place, column))
        self._rows_apart[target] = rows[-1].size
        self.types[target] = TensorType((rows[0].size, rows[-1].size, product.column.size), torch.float32)
        return Result(target, loops, (batch, place, column))

    def _copied(
        self,
        name: str,
        value: Expr,
        loops: tuple[Loop, ...],
        origins: tuple[str, ...],
        stored: torch.dtype = torch.float32,
    ) -> tuple[Load, Map]:
        """A tensor of its own, and how it is read."""
        self.types[name] = TensorType(tuple(loop.size for loop in loops), stored)
        made = Map(name, loops, value, origins, apart=True)
        return Load(compute_dtype(stored), name, tuple(loop.index for loop in loops)), made

    def _whole(self, load: Load, loops: tuple[Loop, ...]) -> Operand:
        """A tensor as an operand, with loops of its own."""
        mine = tuple(self._loop(loop.size) for loop in loops)
        return Operand(mine, replace(load, index=tuple(loop.index for loop in mine)))

    def _loop(self, size: sympy.Expr) -> Loop:
        index = next(self._symbols)
        self._ranges[index] = size
        return Loop(index, size)


def _widens(stage: Map, types: Mapping[str, TensorType]) -> bool:
    """Whether a stage makes floats of integers of 8 bits and does nothing else."""
    value = stage.value
    if not isinstance(value, Apply) or value.op != "to_dtype" or not value.dtype.is_floating_point:
        return False
    (source,) = value.arguments
    return is_element(source) and types[source.tensor].dtype in NARROW


def _as_stored(product: MatrixProduct, widened: Mapping[str, Map]) -> MatrixProduct:
    """A product that reads its right matrix from before it was widened."""
    stage = widened.get(product.right.tensor)
    if stage is None or not isinstance(stage.value, Apply):
        return product
    (source,) = stage.value.arguments
    assert isinstance(source, Load)
    places = {loop.index: part for loop, part in zip(stage.loops, product.right.index, strict=True)}
    index = tuple(substitute(part, places, {}) for part in source.index)
    return replace(product, right=replace(source, index=index), origins=(*stage.origins, *product.origins))


def _biases(graph: StageGraph, products: Collection[str | None]) -> Iterator[_Bias]:
    """Rows that are added to products which nothing else reads."""
    readers = readers_of(graph.stages)
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
    """The parts of ``product[i, j] + row[j]``; of an image ``product[n, j, h, w] + row[j]``."""
    if not isinstance(stage, Map) or stage.apart or len(stage.loops) < 2:
        return None
    value, here = stage.value, tuple(loop.index for loop in stage.loops)
    if not isinstance(value, Apply) or value.op != "add":
        return None
    for made, row in (value.arguments, value.arguments[::-1]):
        if not is_element(made) or made.index != here or not isinstance(row, Load) or row.tensor == made.tensor:
            continue
        varies = {symbol for part in row.index for symbol in part.free_symbols}
        if varies.isdisjoint({here[0], *here[2:]}) and is_place(row, stage.loops[1:2]):
            return _Bias(made.tensor, stage, row)
    return None
