"""Packed products: a product of matrices becomes the template of a target that has no loops for it.

Place: first pass over stages for targets with the template ``product``.
Before and after, for panels of ``w`` columns::

    y[i, j] = sum over k of a[i, k] * b[k, j]     ->    p[n, k, l] = b[k, n w + l], or 0 beyond the last column
    z[i, j] = y[i, j] + c[j]                            z = product(a, p, c)

The packed matrix is a tensor of its own: of a constant it is made once, when a region is bound (``prepared``).
Invariants: same values up to the order of summation. A bias joins where nobody else reads the sums.
Non-goals: whether packing pays; the backend takes products of constants alone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import index_symbol, substitute
from mixbackend.backends.codegen.ir.scalar import Apply, Expr, IndexValue, Load, apply
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
from mixbackend.backends.codegen.schedule.rewrite import ranges_of
from mixbackend.backends.codegen.schedule.simplify import loads_of

_FLOAT_BYTES = 4
_WIDE_REGISTERS = 64
_VECTORS = {True: (3, 4), False: (2, 3)}
"""Registers of a panel's row, by whether registers are wide, of which there are more; the first is best."""


@dataclass(frozen=True)
class _Bias:
    """A row that is added to a product: the stage that does it, and the row."""

    stage: Map
    row: Load


def pack_products(graph: StageGraph, vector_bytes: int) -> StageGraph:
    """Make templates of all products of matrices.

    Args:
        vector_bytes: of a register of the target.
    """
    products = [stage for stage in graph.stages if is_product(stage) and stage.targets[0] is not None]
    if not products:
        return graph
    packer = _Packer(graph, vector_bytes // _FLOAT_BYTES)
    biases = dict(_biases(graph, {targets_of(stage)[0] for stage in products}))
    by_target = {targets_of(stage)[0]: stage for stage in products}
    added = {bias.stage.target: target for target, bias in biases.items()}
    stages: list[Stage] = []
    for stage in graph.stages:
        target = added.get(targets_of(stage)[0]) if targets_of(stage) else None
        if target is not None:
            stages += packer.packed(by_target[target], biases[target])
        elif not is_product(stage):
            stages.append(stage)
        elif targets_of(stage) and targets_of(stage)[0] not in biases:
            stages += packer.packed(stage, None)
    types = tuple((name, type_) for name, type_ in graph.types if name not in biases)
    return replace(graph, stages=tuple(stages), types=(*types, *packer.types))


def panel_columns(columns: sympy.Expr, lanes: int) -> int:
    """Columns of a panel: as few as possible that are not there."""
    choices = [vectors * lanes for vectors in _VECTORS[lanes * _FLOAT_BYTES >= _WIDE_REGISTERS]]
    if not columns.is_Integer:
        return choices[0]
    return min(choices, key=lambda width: -(-int(columns) // width) * width)


class _Packer:
    """Makes the stages of one product after the other."""

    def __init__(self, graph: StageGraph, lanes: int) -> None:
        self.types: list[tuple[str, TensorType]] = []
        self._lanes = lanes
        self._ranges = ranges_of(graph.stages)
        self._symbols = (index_symbol(f"q{number}") for number in itertools.count())

    def packed(self, stage: Reduce, bias: _Bias | None) -> Iterator[Stage]:
        """What packs the right matrix, and the template."""
        assert isinstance(stage.value, Apply)
        left, right = stage.value.arguments
        assert isinstance(left, Load) and isinstance(right, Load)
        (target,), (term,) = targets_of(stage), stage.reduced
        row, column = stage.loops
        if not is_place(left, (row, term)):
            left, copy = self._copied(f"{target}.left", left, (row, term), stage.origins)
            yield copy
        width = panel_columns(column.size, self._lanes)
        panels = (
            self._loop(sympy.ceiling(column.size / width)),
            self._loop(term.size),
            self._loop(sympy.Integer(width)),
        )
        place = panels[0].index * width + panels[2].index
        turned = {column.index: place, term.index: panels[1].index}
        value: Load = replace(right, index=tuple(substitute(part, turned, self._ranges) for part in right.index))
        if (column.size % width) != 0:
            inside = apply("lt", IndexValue(torch.int64, place), IndexValue(torch.int64, column.size))
            value = replace(value, mask=inside)
        held, copy = self._copied(f"{target}.packed", value, panels, stage.origins)
        yield copy
        loops = stage.loops if bias is None else bias.stage.loops
        operands = (Operand((row, term), left), Operand(panels, held), self._row(bias))
        result = Result(target if bias is None else bias.stage.target, loops, tuple(loop.index for loop in loops))
        origins = stage.origins if bias is None else tuple(dict.fromkeys((*stage.origins, *bias.stage.origins)))
        yield Template(PRODUCT, operands, (result,), (("width", float(width)),), origins)

    def _row(self, bias: _Bias | None) -> Operand | None:
        return None if bias is None else Operand(bias.stage.loops[1:], bias.row)

    def _copied(self, name: str, value: Load, loops: tuple[Loop, ...], origins: tuple[str, ...]) -> tuple[Load, Map]:
        """A tensor of its own, and how it is read."""
        self.types.append((name, TensorType(tuple(loop.size for loop in loops), torch.float32)))
        made = Map(name, loops, value, origins, apart=True)
        return Load(torch.float32, name, tuple(loop.index for loop in loops)), made

    def _loop(self, size: sympy.Expr) -> Loop:
        index = next(self._symbols)
        self._ranges[index] = size
        return Loop(index, size)


def _biases(graph: StageGraph, products: set[str]) -> Iterator[tuple[str, _Bias]]:
    """Products that one stage reads, which adds a row to them and does nothing else."""
    readers = Counter(name for stage in graph.stages for name in {load.tensor for load in loads_of(stage)})
    outputs = {item.tensor for item in graph.outputs if isinstance(item, GraphOutput)}
    types = dict(graph.types)
    for stage in graph.stages:
        found = _sum_with_row(stage)
        if found is None or found[0] not in products or found[0] in outputs or readers[found[0]] > 1:
            continue
        target, row = found
        floats = (types[name].dtype == torch.float32 for name in (row.tensor, stage.target))  # type: ignore[union-attr]
        if all(floats) and types[target].sizes == types[stage.target].sizes:  # type: ignore[union-attr]
            yield target, _Bias(stage, row)  # type: ignore[arg-type]


def _sum_with_row(stage: Stage) -> tuple[str, Load] | None:
    """The product and the row of ``product[i, j] + row[j]``."""
    if not isinstance(stage, Map) or stage.apart or len(stage.loops) != 2:
        return None
    value = stage.value
    if not isinstance(value, Apply) or value.op != "add":
        return None
    here = tuple(loop.index for loop in stage.loops)
    for made, row in (value.arguments, value.arguments[::-1]):
        if _is_whole(made, here) and isinstance(row, Load) and row.tensor != made.tensor:  # type: ignore[union-attr]
            varies = {symbol for part in row.index for symbol in part.free_symbols}
            if here[0] not in varies and is_place(row, stage.loops[1:]):
                return made.tensor, row  # type: ignore[union-attr]
    return None


def _is_whole(value: Expr, index: tuple[sympy.Symbol, ...]) -> bool:
    return isinstance(value, Load) and value.mask is None and not value.bindings and value.index == index
