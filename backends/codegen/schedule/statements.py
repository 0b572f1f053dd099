"""Statements: stages become nests that read and write memory at offsets.

Place: first step of ``build``. Input: a group and the layouts of tensors in memory. Output: a draft with the nests of
every stage, nothing merged.
Invariants: a private tensor becomes scratch over its inner loops, row-major; a part of a concatenation has an axis
index of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import rewrite
from mixbackend.backends.codegen.ir.indices import flatten, index_symbol, without_digits
from mixbackend.backends.codegen.ir.kernel import Accumulate, Carry, KernelLoop, Let, LoopMode, Nest, Scratch, Store
from mixbackend.backends.codegen.ir.scalar import Expr, Load, Local, Read, needed
from mixbackend.backends.codegen.ir.stages import (
    Concatenate,
    Loop,
    LoopStage,
    Map,
    Reduce,
    Scan,
    Scatter,
    Stage,
    Template,
    target_loops_of,
    targets_of,
)
from mixbackend.backends.codegen.schedule.draft import Draft
from mixbackend.backends.codegen.schedule.group import Group, Layout
from mixbackend.backends.codegen.schedule.rewrite import with_indices

ONE = sympy.Integer(1)


def draft_of(group: Group, layouts: Mapping[str, Layout]) -> Draft:
    """Every stage of a group as nests.

    Raises:
        ValueError: the group is not one: a private tensor is read at another outer point, an axis that runs in order
            or in parts is an outer loop, memory is shared along a loop that it cannot be shared along, or a stage is a
            template.
    """
    writer = _Writer(group, layouts)
    stages = [_written_once(_with_points(stage), group.private, layouts) for stage in group.stages]
    nests = tuple(nest for stage in stages for nest in writer.nests(stage))
    parts = frozenset(stage.target for stage in group.stages if isinstance(stage, Concatenate))
    outer = tuple(KernelLoop(loop.index, loop.size, "parallel") for loop in group.outer)
    return Draft(outer, nests, writer.scratch(), writer.dtypes(), parts)


def _with_points(stage: Stage) -> LoopStage:
    if isinstance(stage, Template):
        raise ValueError(f"{targets_of(stage)} is made by a template, which is no nest")
    return stage


def _written_once(stage: LoopStage, private: frozenset[str], layouts: Mapping[str, Layout]) -> LoopStage:
    """The stage with one value for loops along which its target has stride 0: all of theirs are equal and share memory.

    A loop without values keeps none: the memory of an empty tensor has no element.

    Raises:
        ValueError: the stage's targets differ in that, or it writes at places of its own.
    """
    strides = [layouts[target].strides for target in targets_of(stage) if target not in private]
    kept = target_loops_of(stage)
    single = [loop for place, loop in enumerate(kept) if loop.size != 1 and any(item[place] == 0 for item in strides)]
    if not single:
        return stage
    shared = all(item[place] == 0 for item in strides for place, loop in enumerate(kept) if loop in single)
    if isinstance(stage, Scatter) or not shared or len(strides) != len(targets_of(stage)):
        raise ValueError(f"{targets_of(stage)} cannot share memory along {', '.join(map(str, single))}")
    once = (Loop(loop.index, sympy.Min(ONE, loop.size)) if loop in single else loop for loop in kept)
    return replace(stage, loops=tuple(once))


@dataclass(frozen=True)
class _Private:
    """A tensor without memory of its own: dtype and sizes, and which outer index a dimension is (``None``: inner)."""

    dtype: torch.dtype
    sizes: tuple[sympy.Expr, ...]
    outer: tuple[sympy.Symbol | None, ...]


class _Writer:
    """Turns stages into nests; knows where every tensor lies."""

    def __init__(self, group: Group, layouts: Mapping[str, Layout]) -> None:
        self._outer = {loop.index for loop in group.outer}
        self._layouts = layouts
        self._used: dict[str, torch.dtype] = {}
        self._names = itertools.count()
        self._private = {
            target: self._describe(stage, target)
            for stage in map(_with_points, group.stages)
            for target in targets_of(stage)
            if target in group.private
        }

    def scratch(self) -> tuple[Scratch, ...]:
        """Memory of all private tensors."""
        return tuple(
            Scratch(name, item.dtype, sympy.Mul(*(s for s, o in zip(item.sizes, item.outer, strict=True) if o is None)))
            for name, item in self._private.items()
        )

    def dtypes(self) -> dict[str, torch.dtype]:
        """Storage type of everything touched."""
        return dict(self._used)

    def nests(self, stage: LoopStage) -> Iterator[Nest]:
        """The nests of one stage."""
        if isinstance(stage, Map):
            yield Nest(
                self._loops(stage.loops), (), (self._store(stage.target, stage.loops, self._value(stage.value)),)
            )
        elif isinstance(stage, Concatenate):
            yield from self._parts(stage)
        elif isinstance(stage, Reduce):
            yield self._reduction(stage)
        elif isinstance(stage, Scan):
            yield self._scan(stage)
        else:
            yield from self._scatter(stage)

    # -- memory ---------------------------------------------------------------------------------------------------

    def _describe(self, stage: LoopStage, target: str) -> _Private:
        loops = target_loops_of(stage)
        outer = tuple(loop.index if loop.index in self._outer else None for loop in loops)
        return _Private(self._layouts[target].type.dtype, tuple(loop.size for loop in loops), outer)

    def _offset(self, tensor: str, index: tuple[sympy.Expr, ...]) -> sympy.Expr:
        private = self._private.get(tensor)
        if private is None:
            layout = self._layouts[tensor]
            self._used[tensor] = layout.type.dtype
            strides = layout.strides
            pairs = zip(index, strides, strict=True)
            return without_digits(sympy.expand(sympy.Add(*(item * stride for item, stride in pairs))))
        self._used[tensor] = private.dtype
        inner, sizes = [], []
        for item, size, outer in zip(index, private.sizes, private.outer, strict=True):
            if outer is None:
                inner.append(item)
                sizes.append(size)
            elif item != outer and size != 1:
                raise ValueError(f"{tensor} is private, but read at {item} instead of the outer point {outer}")
        return flatten(inner, sizes)

    def _value(self, value: Expr) -> Expr:
        def node(item: Expr) -> Expr:
            if not isinstance(item, Load):
                return item
            offset = self._offset(item.tensor, item.index)
            return Read(item.dtype, item.tensor, offset, needed(item.bindings, (offset,)), item.mask, item.other)

        return rewrite(value, node)

    def _store(self, target: str, loops: tuple[Loop, ...], value: Expr) -> Store:
        return Store(target, self._offset(target, tuple(loop.index for loop in loops)), value)

    # -- stages ---------------------------------------------------------------------------------------------------

    def _loops(self, loops: tuple[Loop, ...], mode: LoopMode = "serial") -> tuple[KernelLoop, ...]:
        return tuple(KernelLoop(loop.index, loop.size, mode) for loop in loops if loop.index not in self._outer)

    def _inside(self, loop: Loop, target: str) -> None:
        if loop.index in self._outer:
            raise ValueError(f"the axis {loop} of {target} cannot be an outer loop of its group")

    def _parts(self, stage: Concatenate) -> Iterator[Nest]:
        axis = stage.loops[stage.axis]
        self._inside(axis, stage.target)
        for number, part in enumerate(stage.parts):
            inside = Loop(index_symbol(f"{axis.index.name}_{number}"), part.size)
            loops = tuple(inside if loop is axis else loop for loop in stage.loops)
            ranges = {loop.index: loop.size for loop in loops}
            value = self._value(with_indices(part.value, {axis.index: inside.index}, ranges))
            index = tuple(loop.index + part.start if loop is inside else loop.index for loop in loops)
            yield Nest(self._loops(loops), (), (Store(stage.target, self._offset(stage.target, index), value),))

    def _reduction(self, stage: Reduce) -> Nest:
        value = self._value(stage.value)
        results = 2 if stage.kind == "welford" else 1
        dtype = torch.int64 if stage.kind in ("argmax", "argmin") else value.dtype
        names = tuple(f"%r{next(self._names)}" for _ in range(results))
        stores = tuple(
            self._store(target, stage.loops, Local(dtype, name))
            for target, name in zip(stage.targets, names, strict=False)
            if target is not None
        )
        fold = Accumulate(names, stage.kind, value)
        return Nest(self._loops(stage.loops), self._loops(stage.reduced), (fold,), stores)

    def _scan(self, stage: Scan) -> Nest:
        axis = stage.loops[stage.axis]
        self._inside(axis, stage.target)
        others = self._loops(tuple(loop for loop in stage.loops if loop is not axis))
        value = self._value(stage.value)
        name = f"%r{next(self._names)}"
        store = self._store(stage.target, stage.loops, Local(value.dtype, name))
        if axis.size == 1:
            # A single value is its own fold, and loops over one value vanish later.
            return Nest((*others, *self._loops((axis,))), (), (Let(name, value), store))
        return Nest((*others, *self._loops((axis,), "ordered")), (), (Carry(name, stage.kind, value), store))

    def _scatter(self, stage: Scatter) -> Iterator[Nest]:
        base = self._store(stage.target, stage.target_loops, self._value(stage.base))
        yield Nest(self._loops(stage.target_loops), (), (base,))
        store = Store(
            stage.target,
            self._offset(stage.target, stage.destination),
            self._value(stage.value),
            stage.mode,
            tuple((symbol, self._value(value)) for symbol, value in stage.bindings),
            None if stage.mask is None else self._value(stage.mask),
        )
        apart = _collision_free(stage)
        loops = [
            KernelLoop(loop.index, loop.size, "serial" if loop.index in apart else "ordered")
            for loop in stage.loops
            if loop.index not in self._outer
        ]
        yield Nest(tuple(loops), (), (store,))


def _collision_free(stage: Scatter) -> frozenset[sympy.Symbol]:
    """Loops of which different values never write one element: alone in some dimension, with a constant step."""
    indices = {loop.index for loop in stage.loops}
    moving = indices | {symbol for symbol, _ in stage.bindings}
    free = set()
    for position in stage.destination:
        used = position.free_symbols & moving
        if len(used) != 1 or not used <= indices:
            continue
        (index,) = used
        step = sympy.expand(position - position.xreplace({index: sympy.Integer(0)})) / index
        if step.is_Integer and step != 0:
            free.add(index)
    return frozenset(free)
