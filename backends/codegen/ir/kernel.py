"""Kernels: fused loop nests with layouts, loop order, parallelism and vectorisation decided.

Place: made by ``schedule``, run by ``interpret``, turned into code by a target. Nothing in a kernel belongs to one
target: how wide a vector is and how threads start is the target's business.
A kernel is a ``Kernel``, or a ``TemplateKernel``: a computation that the target has as a piece of its own.
Shape of a ``Kernel``::

    for each point of `outer` (in any order, in parallel where marked):
        for each nest in order:
            for each point of nest.loops:            (any order, unless a loop is `ordered`)
                start every accumulator
                for each point of nest.reduced:      body
                finish

Invariants: different outer points never touch the same element of a written buffer, or only by ``Store.atomic``;
scratch is private to one outer point and dead after it; a nest sees what earlier nests of the same outer point stored.
Extents of inner loops may use outer indices (a last tile is smaller). At most one loop per nest is ``vector``: the
innermost of ``reduced``, or any one of ``loops``. Names are canonical (``b0``, ``s0``, ``p0``, ``j0``), so that equal
computations are equal kernels, whatever their origin and, where extents are parameters, whatever their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import Iteration
from mixbackend.backends.codegen.ir.printed import Printed
from mixbackend.backends.codegen.ir.scalar import Bindings, Expr
from mixbackend.backends.codegen.ir.stages import ReductionKind, ScanKind, WriteMode

LoopMode = Literal["serial", "parallel", "vector", "ordered", "unrolled"]
"""``parallel`` only in ``outer``; ``ordered`` loops run in increasing order (scans, scatters with collisions);
``unrolled`` has a small constant extent."""


@dataclass(frozen=True, slots=True)
class KernelLoop(Printed, Iteration):
    """One loop of a kernel: an index, its number of values, and how it runs."""

    index: sympy.Symbol
    extent: sympy.Expr
    mode: LoopMode = "serial"


@dataclass(frozen=True, slots=True)
class BufferParameter(Printed):
    """A buffer that a kernel gets a pointer to.

    Attributes:
        name: ``b0``, ``b1``...
        dtype: of its elements in memory.
        access: ``read``, ``write`` (never read before it was written by this kernel), or ``update``.
    """

    name: str
    dtype: torch.dtype
    access: Literal["read", "write", "update"]


@dataclass(frozen=True, slots=True)
class Scratch(Printed):
    """Memory private to one outer point: ``elements`` may use parameters, not outer indices."""

    name: str
    dtype: torch.dtype
    elements: sympy.Expr


@dataclass(frozen=True)
class Let(Printed):
    """Name a value for the statements after it in the same point."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Store(Printed):
    """Write one element.

    Attributes:
        buffer: a parameter or scratch.
        offset: in elements, over indices, parameters and bound symbols.
        mode: ``set``, or combine with what is there.
        mask: whether to write at all; ``None`` is always.
        atomic: other outer points may write the same element.
    """

    buffer: str
    offset: sympy.Expr
    value: Expr
    mode: WriteMode = "set"
    bindings: Bindings = ()
    mask: Expr | None = None
    atomic: bool = False


@dataclass(frozen=True)
class Accumulate(Printed):
    """Fold a value over ``reduced``.

    Attributes:
        names: of the results, readable in ``finish`` as ``Local``; one per result of the kind (``welford`` has two:
            mean and sum of squared distances).
        value: folded value; its type is the accumulator's (``argmax``: the position is the row-major one over
            ``reduced``, int64).
    """

    names: tuple[str, ...]
    kind: ReductionKind
    value: Expr


@dataclass(frozen=True)
class Carry(Printed):
    """Fold along the one ``ordered`` loop of ``loops``: ``name`` is the running result, this point included."""

    name: str
    kind: ScanKind
    value: Expr


Statement = Union[Let, Store, Accumulate, Carry]


@dataclass(frozen=True)
class Nest(Printed):
    """See the module's docstring. Without ``reduced`` the body runs once per point and ``finish`` is empty."""

    loops: tuple[KernelLoop, ...]
    reduced: tuple[KernelLoop, ...]
    body: tuple[Statement, ...]
    finish: tuple[Statement, ...] = ()


@dataclass(frozen=True)
class Kernel(Printed):
    """See the module's docstring.

    Attributes:
        parameters: int64 symbols that sizes, strides and offsets are made of.
        numbers: float64 symbols (region inputs that are floating numbers).
        buffers, scratch: memory it touches.
        outer: loops shared by all nests.
        nests: in order.
        work: rough vector operations of one call, over parameters: a target starts threads only where it pays.
        origins: graph nodes it computes, for people; no part of equality.
    """

    parameters: tuple[sympy.Symbol, ...]
    numbers: tuple[sympy.Symbol, ...]
    buffers: tuple[BufferParameter, ...]
    scratch: tuple[Scratch, ...]
    outer: tuple[KernelLoop, ...]
    nests: tuple[Nest, ...]
    work: sympy.Expr


@dataclass(frozen=True)
class BufferView(Printed):
    """A tensor inside a buffer: strides and the offset of its first element, in elements.

    Expressions are over parameters; a stride is 0 where all places along a dimension are one.
    """

    buffer: str
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr


@dataclass(frozen=True)
class TemplateKernel(Printed):
    """A computation of whole tensors under its name (``templates``).

    Attributes:
        parameters: int64 symbols that views are made of.
        buffers: one per view, in order. Buffers that are read may be one memory.
        name, options: of the template.
        operands, results: as the template's form lists them; ``None`` for what is not there.
        finish: as of a template stage.
        numbers: none; as every kernel has them.
    """

    parameters: tuple[sympy.Symbol, ...]
    buffers: tuple[BufferParameter, ...]
    name: str
    options: tuple[tuple[str, bool | float], ...]
    operands: tuple[BufferView | None, ...]
    results: tuple[BufferView | None, ...]
    finish: Expr | None = None
    numbers: tuple[sympy.Symbol, ...] = ()

    @property
    def views(self) -> tuple[BufferView, ...]:
        """Operands and results that are there, in order."""
        return tuple(view for view in (*self.operands, *self.results) if view is not None)


AnyKernel = Union[Kernel, TemplateKernel]
