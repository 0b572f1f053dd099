"""Points of loops as a table: one row per point, one column per index.

Place: below ``kernels``. Extents may differ between points (a last tile is smaller), so the points of a nest need not
form a grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from mixbackend.backends.codegen.interpret.indices import Values, evaluate_index
from mixbackend.backends.codegen.interpret.memory import Owners
from mixbackend.backends.codegen.ir.kernel import KernelLoop

_SPAN_PER_VALUE = 16
"""Up to so many possible values per value they are ranked by marking those that occur."""


@dataclass(frozen=True)
class PointTable:
    """Points in the order of their loops, the last loop fastest.

    Attributes:
        columns: value of each index at each point.
        outer, lane: number of the outer point, and of the combination of all indices of open order.
    """

    columns: dict[sympy.Symbol, torch.Tensor]
    outer: torch.Tensor
    lane: torch.Tensor

    @property
    def count(self) -> int:
        """Number of points."""
        return self.outer.numel()

    @property
    def owners(self) -> Owners:
        """Owners of the accesses that these points make."""
        return Owners(self.outer, self.lane)

    def extended(self, loops: Sequence[KernelLoop], known: Values) -> PointTable:
        """Every point with every value of further loops."""
        table = self
        for loop in loops:
            extent = torch.as_tensor(evaluate_index(loop.extent, {**known, **table.columns}))
            counts = extent.clamp(min=0).expand(table.count)
            rows = torch.repeat_interleave(torch.arange(table.count), counts)
            index = torch.arange(rows.numel()) - (counts.cumsum(0) - counts)[rows]
            table = table.rows(rows)
            table = replace(table, columns={**table.columns, loop.index: index})
        return table

    def rows(self, rows: torch.Tensor) -> PointTable:
        """Some points."""
        columns = {symbol: column[rows] for symbol, column in self.columns.items()}
        return PointTable(columns, self.outer[rows], self.lane[rows])

    def split(self, symbols: Iterable[sympy.Symbol]) -> Iterator[PointTable]:
        """Points that agree in some indices together, in increasing order of these."""
        keys = [self.columns[symbol] for symbol in symbols]
        if not keys:
            yield self
            return
        numbers, count = numbered(keys)
        order = torch.argsort(numbers, stable=True)
        for rows in torch.split(order, torch.bincount(numbers, minlength=count).tolist()):
            yield self.rows(rows)

    def with_lanes(self, unordered: Sequence[sympy.Symbol]) -> PointTable:
        """Lanes numbered anew: one per outer point and combination of the given indices."""
        lane, _ = numbered([self.outer, *(self.columns[symbol] for symbol in unordered)])
        return replace(self, lane=lane)

    def as_outer(self) -> PointTable:
        """Each of these points is an outer point."""
        numbers = torch.arange(self.count)
        return replace(self, outer=numbers, lane=numbers)


def numbered(keys: Sequence[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """A number for each distinct combination, in lexicographic order, and how many there are."""
    numbers, count = _ranked(keys[0])
    for key in keys[1:]:
        ranks, distinct = _ranked(key)
        numbers, count = _ranked(numbers * distinct + ranks)
    return numbers, count


def _ranked(values: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The rank of each value among the distinct ones, and how many these are."""
    if values.numel() == 0:
        return values, 0
    least, greatest = (int(value) for value in torch.aminmax(values))
    if greatest - least > _SPAN_PER_VALUE * values.numel():
        distinct, ranks = torch.unique(values, return_inverse=True)
        return ranks, distinct.numel()
    # Values that lie close together need no sorting.
    places = values - least
    present = torch.zeros(greatest - least + 1, dtype=torch.int64).index_fill_(0, places, 1)
    below = present.cumsum(0)
    return below[places] - 1, int(below[-1])


def one_point() -> PointTable:
    """The single point of no loops."""
    zero = torch.zeros(1, dtype=torch.int64)
    return PointTable({}, zero, zero)
