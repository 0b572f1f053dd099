"""Stages: whole tensors computed point by point, before anything is fused.

Place: written by ``lower``, rewritten and grouped by ``schedule``; ``interpret`` runs them.
Invariants: stages are in execution order; each target is defined once and read only later; a stage reads points of
earlier tensors through ``Load`` and never its own target. The value of a stage has the compute type of its target;
storing rounds to the target's type. Loop symbols are unique in a graph.
Non-goals: layouts, parallelism, fusion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeGuard, Union

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import Iteration
from mixbackend.backends.codegen.ir.printed import Printed
from mixbackend.backends.codegen.ir.scalar import Bindings, Expr, Load

ReductionKind = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford", "dot"]
"""How values are folded. All but ``argmax``, ``argmin`` and ``welford`` take one value and give one result of its
compute type. ``max`` and ``min`` propagate NaN. ``argmax``/``argmin`` give the row-major position over the reduced
loops (int64) of the first extreme; a NaN is the most extreme. ``welford`` gives two results, the mean and the sum of
squared distances from it; over nothing they are NaN and 0. ``sum`` over nothing is 0, ``prod`` 1, ``any`` False,
``all`` True. ``dot`` is the ``sum`` of products (``mul``) of two elements as they lie in memory, made by what hardware
has for products of matrices."""

ScanKind = Literal["sum", "prod", "max", "min", "logsumexp"]
WriteMode = Literal["set", "add", "mul", "max", "min"]

SEED, OFFSET = "random.seed", "random.offset"
"""Names of the tensors of one int64 that hold the state of torch's generator."""


@dataclass(frozen=True, slots=True)
class Loop(Iteration):
    """An index and the number of its values."""

    index: sympy.Symbol
    size: sympy.Expr

    def __str__(self) -> str:
        return f"{self.index}<{self.size}"


@dataclass(frozen=True, slots=True)
class TensorType(Printed):
    """Sizes and storage type of a tensor.

    Attributes:
        sizes: sympy expressions over size symbols.
        dtype: as it is stored.
    """

    sizes: tuple[sympy.Expr, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Map(Printed):
    """``target[loops] = value`` for every point.

    Attributes:
        apart: whether it has memory of its own, in the order of its loops, and a kernel of its own: a small tensor with
            elements that are read often, so that the order it lies in counts for more than making it.
    """

    target: str
    loops: tuple[Loop, ...]
    value: Expr
    origins: tuple[str, ...] = ()
    apart: bool = False


@dataclass(frozen=True)
class Part:
    """One piece of a concatenation: the loop along the axis has ``size`` values, written from ``start`` on."""

    size: sympy.Expr
    start: sympy.Expr
    value: Expr


@dataclass(frozen=True)
class Concatenate(Printed):
    """``target`` put together along one axis: part after part, each computed in place.

    Attributes:
        loops: of the target; in a part's value, the index of the loop at ``axis`` counts from the part's start.
    """

    target: str
    loops: tuple[Loop, ...]
    axis: int
    parts: tuple[Part, ...]
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reduce(Printed):
    """``targets[loops] = fold of values over reduced``.

    Attributes:
        targets: one per result of the kind, in order; an unused result is ``None``.
        values: what is folded, over ``loops`` and ``reduced``.
    """

    targets: tuple[str | None, ...]
    loops: tuple[Loop, ...]
    reduced: tuple[Loop, ...]
    kind: ReductionKind
    value: Expr
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scan(Printed):
    """``target[loops]`` = fold of ``value`` over all points up to this one along ``axis`` (inclusive)."""

    target: str
    loops: tuple[Loop, ...]
    axis: int
    kind: ScanKind
    value: Expr
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scatter(Printed):
    """``target = base``, then for every point in row-major order ``target[destination] mode= value``.

    Attributes:
        target_loops, base: the value of every point before any update; ``base`` is over ``target_loops``.
        loops: the updates.
        destination: one expression per dimension of the target, over ``loops`` and bound symbols. Dimensions with a
            loop index alone as expression are written by that index only: updates of different values of it never meet.
        bindings: run-time integers in the destination, always in range.
        mask: updates to make; ``None`` for all.
    """

    target: str
    target_loops: tuple[Loop, ...]
    base: Expr
    loops: tuple[Loop, ...]
    destination: tuple[sympy.Expr, ...]
    value: Expr
    mode: WriteMode
    bindings: Bindings = ()
    mask: Expr | None = None
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operand:
    """A tensor that a template reads where it lies: ``value`` at every point of ``loops``, which are its dimensions.

    Attributes:
        value: without mask and bindings, its index linear in the loops.
    """

    loops: tuple[Loop, ...]
    value: Load


@dataclass(frozen=True)
class Result:
    """A tensor that a template makes: what it gives for a point of ``loops`` goes to ``target[index]``.

    Attributes:
        target: ``None`` if nothing reads it.
        index: linear in the loops; different points go to different elements, and every element is written.
    """

    target: str | None
    loops: tuple[Loop, ...]
    index: tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class Template(Printed):
    """Whole tensors from whole tensors, by a computation that targets have as a piece of their own (``templates``).

    Attributes:
        name: of the computation.
        operands, results: as its form lists them; an operand may be ``None`` where the form says so. Operands beyond
            the form have the dimensions of the first result.
        options: constants that it depends on, by name, as its form lists them.
        finish: what is stored instead of the first result, point by point: of ``Local``s (``templates.RESULT`` and
            ``templates.other``, those of operands beyond the form) and constants. ``None`` for the result itself.
    """

    name: str
    operands: tuple[Operand | None, ...]
    results: tuple[Result, ...]
    options: tuple[tuple[str, bool | float], ...]
    origins: tuple[str, ...] = ()
    finish: Expr | None = None


LoopStage = Union[Map, Concatenate, Reduce, Scan, Scatter]
"""Stages that say what is computed at every point."""

Stage = Union[LoopStage, Template]


@dataclass(frozen=True, slots=True)
class StridedInput(Printed):
    """A tensor that a region reads: its type and the strides it has, in elements."""

    name: str
    type: TensorType
    strides: tuple[sympy.Expr, ...]


@dataclass(frozen=True, slots=True)
class NumberInput(Printed):
    """A number that a region reads; ``symbol`` stands for it in expressions.

    Integers are sizes. A floating number may appear only in ``IndexValue`` of a floating type, as the symbol alone.
    """

    name: str
    symbol: sympy.Symbol


@dataclass(frozen=True, slots=True)
class Returned:
    """Sizes and strides in which memory is handed to the caller."""

    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]


@dataclass(frozen=True, slots=True)
class GraphOutput(Printed):
    """A tensor that leaves: the whole of ``tensor`` (a stage's target), in these strides.

    Attributes:
        strides: one per dimension of ``tensor``.
        destination: the input that takes it in its memory, instead of fresh memory; what reads the input has the value
            from before. ``None`` for outputs of the region.
        returned: what the caller sees where ``tensor`` has other dimensions over the same memory, in the same
            row-major order of elements (``split_loops`` makes them); ``None`` where it has not.
    """

    name: str
    tensor: str
    strides: tuple[sympy.Expr, ...]
    returned: Returned | None = None
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class AliasOutput(Printed):
    """A strided view of an input that leaves as such: nothing is computed."""

    name: str
    input: str
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr


@dataclass(frozen=True)
class StageGraph(Printed):
    """A region as stages.

    Attributes:
        inputs: in the order of the region's inputs; see ``draws``.
        types: of every input tensor and every target, by name, in order of definition.
        stages: in execution order.
        draws: how far the region moves the offset of torch's generator on. Unless it is zero, the last two inputs are
            the generator's ``SEED`` and ``OFFSET`` as they are before, which the region is not given.
        outputs: in the order of the region's outputs, then what is written into inputs, each into another one. Two
            outputs never name one tensor. No stage after the one that makes what is written into an input reads that
            input, and this one itself reads it only at the point it makes (a scatter: in its base).
    """

    inputs: tuple[StridedInput | NumberInput, ...]
    types: tuple[tuple[str, TensorType], ...]
    stages: tuple[Stage, ...]
    outputs: tuple[GraphOutput | AliasOutput, ...]
    draws: sympy.Expr = sympy.S.Zero


def given_strides(graph: StageGraph) -> dict[str, tuple[sympy.Expr, ...]]:
    """Strides of the tensors that come in and of those that leave, which are not to be chosen."""
    inputs = {item.name: item.strides for item in graph.inputs if isinstance(item, StridedInput)}
    return inputs | {item.tensor: item.strides for item in graph.outputs if isinstance(item, GraphOutput)}


def destinations(graph: StageGraph) -> dict[str, str]:
    """Inputs that are written into, by the tensor that is."""
    written = (item for item in graph.outputs if isinstance(item, GraphOutput))
    return {item.tensor: item.destination for item in written if item.destination is not None}


def targets_of(stage: Stage) -> tuple[str, ...]:
    """Names of the tensors a stage defines."""
    if isinstance(stage, Reduce):
        return tuple(name for name in stage.targets if name is not None)
    if isinstance(stage, Template):
        return tuple(result.target for result in stage.results if result.target is not None)
    return (stage.target,)


def target_loops_of(stage: LoopStage) -> tuple[Loop, ...]:
    """Loops over all elements of a stage's targets, one per dimension."""
    return stage.target_loops if isinstance(stage, Scatter) else stage.loops


def is_product(stage: Stage) -> TypeGuard[Reduce]:
    """Whether a stage multiplies matrices."""
    return isinstance(stage, Reduce) and stage.kind == "dot"
