"""The space of a block: which variables its points are told apart by, and the shape of what depends on them.

Place: made by ``printer`` from a plan; read by everything that prints.
An axis is a dimension of the block, a row that is walked, or an outer loop that a block has one value of. What is
printed knows the axes that it depends on, and has one value along the others.
Invariants: names are ``x0``, ``x1`` (outer points), ``r0``, ``r1`` (rows of different extents). With ``points`` a row's
axis has no dimension: it is a number that a loop counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import sympy

from mixbackend.backends.codegen.ir.grammar import loops_of
from mixbackend.backends.codegen.ir.indices import flatten
from mixbackend.backends.codegen.ir.kernel import Kernel, KernelLoop, Nest
from mixbackend.backends.codegen.targets.triton.indices import index_text
from mixbackend.backends.codegen.targets.triton.plan import Plan, Walk

Axes = frozenset[str]
NOWHERE: Axes = frozenset()


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        loops: it stands for their indices, row-major.
        block: points at a time.
        dimension: of the block; ``None`` for a number.
        walk: how it is walked, if it is a row.
    """

    name: str
    loops: tuple[KernelLoop, ...]
    block: int
    dimension: int | None
    walk: Walk | None = None

    @property
    def extent(self) -> sympy.Expr:
        """Its number of points."""
        return sympy.Mul(*(loop.extent for loop in self.loops))

    @property
    def is_masked(self) -> bool:
        """Whether the last block may be partly outside."""
        if self.dimension is None:
            return False
        return not (self.extent.is_Integer and int(self.extent) % self.block == 0 and self.extent > 0)


@dataclass
class Space:
    """See the module's docstring.

    Attributes:
        axes: by name.
        names: variables of the kernel, by the symbols of loops.
        rank: dimensions of a block.
    """

    axes: dict[str, Axis]
    rank: int
    wide: bool
    names: dict[sympy.Symbol, str] = field(default_factory=dict)
    _axis_of: dict[sympy.Symbol, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for axis in self.axes.values():
            for loop in axis.loops:
                self._axis_of[loop.index] = axis.name
                self.names[loop.index] = axis.name if len(axis.loops) == 1 else loop.index.name

    def row_of(self, nest: Nest) -> Axis | None:
        """The row of a nest."""
        loops = loops_of(nest)
        return self.axes[self._axis_of[loops[0].index]] if loops else None

    def axes_of(self, expression: sympy.Expr) -> Axes:
        """Axes that an expression of loops and parameters depends on."""
        return frozenset(self._axis_of[symbol] for symbol in expression.free_symbols if symbol in self._axis_of)

    def text(self, expression: sympy.Expr, bound: dict[sympy.Symbol, str] | None = None) -> str:
        """Text of an index expression."""
        for axis in self.axes.values():
            indices = {loop.index for loop in axis.loops}
            if len(axis.loops) > 1 and expression.free_symbols & indices:
                # Points that are one after the other in memory are so in the text.
                position = flatten((loop.index for loop in axis.loops), (loop.extent for loop in axis.loops))
                rest = sympy.expand(expression - position)
                if not rest.free_symbols & indices:
                    expression = rest + sympy.Symbol(axis.name)
        return index_text(expression, {**self.names, **(bound or {})})

    def masks(self, axes: Axes) -> list[str]:
        """Names of the masks that keep inside of these axes."""
        return [f"{name}_in" for name in sorted(axes) if self.axes[name].is_masked]

    def dimensions(self, axes: Axes) -> Axes:
        """Those of the axes that are dimensions of the block."""
        return frozenset(name for name in axes if self.axes[name].dimension is not None)

    def shape(self, axes: Collection[str]) -> str:
        """Shape of what depends on these axes."""
        sizes = [1] * self.rank
        for name in axes:
            axis = self.axes[name]
            if axis.dimension is not None:
                sizes[axis.dimension] = axis.block
        return f"[{', '.join(map(str, sizes))}]"

    def arange(self, axis: Axis) -> str:
        """The positions of a block along its dimension."""
        assert axis.dimension is not None
        places = ", ".join(":" if place == axis.dimension else "None" for place in range(self.rank))
        wide = ".to(tl.int64)" if self.wide else ""
        return f"tl.arange(0, {axis.block}){f'[{places}]' if self.rank > 1 else ''}{wide}"

    def apart(self, axis: Axis) -> Iterator[str]:
        """Lines that give the indices of the loops of an axis."""
        rest = axis.name
        for number, loop in reversed(list(enumerate(axis.loops))):
            if len(axis.loops) == 1:
                return
            yield f"{loop.index.name} = {rest}" + (f" % {self.text(loop.extent)}" if number else "")
            rest = f"({rest} // {self.text(loop.extent)})"


def make_space(kernel: Kernel, plan: Plan) -> Space:
    """The space of a kernel under a plan."""
    has_row = any(walk is not None and walk.way != "points" for walk in plan.walks)
    rank = len(plan.sides) + has_row
    axes = {
        f"x{number}": Axis(f"x{number}", side.loops, side.block, number)
        for number, side in enumerate(plan.sides)
        if side.loops
    }
    if plan.rest:
        axes["y"] = Axis("y", plan.rest, 1, None)
    rows: dict[tuple[sympy.Symbol, ...], str] = {}
    for nest, walk in zip(kernel.nests, plan.walks, strict=True):
        loops = loops_of(nest)
        key = tuple(loop.index for loop in loops)
        if walk is None or key in rows:
            continue
        rows[key] = f"r{len(rows)}"
        dimension = None if walk.way == "points" else rank - 1
        axes[rows[key]] = Axis(rows[key], loops, walk.block, dimension, walk)
    return Space(axes, rank, plan.wide)
