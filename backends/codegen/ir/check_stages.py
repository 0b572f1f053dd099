"""Checker of stage graphs.

Place: after lowering and after every pass that rewrites stages, in tests and under debugging.
Input: a graph. Output: nothing, or one error with every violated rule of ``ir.stages``.
Invariants: sizes are compared as expressions; what cannot be told apart counts as equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.check_expressions import (
    MODE_KINDS,
    SCAN_KINDS,
    Scope,
    check_expression,
    check_fold,
    check_index,
    check_kind,
    check_place,
    check_stored,
)
from mixbackend.backends.codegen.ir.check_templates import check_template
from mixbackend.backends.codegen.ir.errors import Problems
from mixbackend.backends.codegen.ir.grammar import expressions_of, loops_of, walk
from mixbackend.backends.codegen.ir.scalar import Load
from mixbackend.backends.codegen.ir.stages import (
    AliasOutput,
    Concatenate,
    GraphOutput,
    Loop,
    Map,
    NumberInput,
    Reduce,
    Scan,
    Scatter,
    Stage,
    StageGraph,
    StridedInput,
    Template,
    TensorType,
    targets_of,
)
from mixbackend.backends.codegen.ir.text import listing


def check_stages(graph: StageGraph) -> None:
    """Check a graph.

    Raises:
        IrError: it breaks a rule.
    """
    _GraphCheck(graph).run()


def input_symbols(
    inputs: Iterable[StridedInput | NumberInput],
) -> tuple[frozenset[sympy.Symbol], frozenset[sympy.Symbol]]:
    """Integer and floating symbols that inputs give a value."""
    integers: set[sympy.Symbol] = set()
    numbers: set[sympy.Symbol] = set()
    for item in inputs:
        if isinstance(item, NumberInput):
            (integers if item.symbol.is_integer else numbers).add(item.symbol)
            continue
        for expression in (*item.type.sizes, *item.strides):
            integers |= expression.free_symbols
    return frozenset(integers), frozenset(numbers)


def check_outputs(inputs: Sequence[StridedInput | NumberInput], outputs: Iterable[AliasOutput], scope: Scope) -> None:
    """Check outputs that are views of inputs."""
    tensors = {item.name for item in inputs if isinstance(item, StridedInput)}
    for output in outputs:
        scope.problems.expect(output.input in tensors, f"{output.input} is no input tensor", output)
        scope.problems.expect(len(output.sizes) == len(output.strides), "as many strides as sizes", output)
        for expression in (*output.sizes, *output.strides, output.offset):
            check_index(expression, scope)


def differ(first: Any, second: Any) -> bool:
    """Whether two sizes are certainly different."""
    difference = sympy.expand(first - second)
    return bool(difference.is_Integer and difference != 0)


class _GraphCheck:
    """One check: what is defined so far, and what is wrong."""

    def __init__(self, graph: StageGraph) -> None:
        self._graph = graph
        self._problems = Problems()
        self._types = dict(graph.types)
        self._sizes, self._numbers = input_symbols(graph.inputs)
        self._defined: dict[str, tuple[torch.dtype, int]] = {}
        self._indices: set[sympy.Symbol] = set()

    def run(self) -> None:
        self._inputs()
        for stage in self._graph.stages:
            self._stage(stage)
            self._define(stage)
        self._outputs()
        named = [name for name, _ in self._graph.types]
        self._problems.expect(len(set(named)) == len(named), "a tensor has two types", listing(named))
        unknown = [name for name in named if name not in self._defined]
        self._problems.expect(not unknown, "types of tensors that nothing defines", listing(unknown))
        self._problems.raise_all("stage graph")

    # -- inputs and outputs ---------------------------------------------------------------------------------------

    def _inputs(self) -> None:
        names = [item.name for item in self._graph.inputs]
        self._problems.expect(len(set(names)) == len(names), "two inputs have one name", listing(names))
        for item in self._graph.inputs:
            if isinstance(item, NumberInput):
                continue
            self._problems.expect(self._types.get(item.name) == item.type, "an input of another type", item)
            self._problems.expect(len(item.strides) == len(item.type.sizes), "as many strides as sizes", item)
            self._defined[item.name] = (item.type.dtype, len(item.type.sizes))

    def _outputs(self) -> None:
        tensors = [item for item in self._graph.outputs if isinstance(item, GraphOutput)]
        inputs = {item.name for item in self._graph.inputs}
        for output in tensors:
            is_target = output.tensor in self._defined and output.tensor not in inputs
            if self._problems.expect(is_target, f"{output.tensor} is no target of a stage", output):
                rank = self._defined[output.tensor][1]
                self._problems.expect(rank == len(output.strides), "as many strides as sizes", output)
            for stride in output.strides:
                check_index(stride, self._scope(output))
        named = [output.tensor for output in tensors]
        self._problems.expect(len(set(named)) == len(named), "two outputs name one tensor", listing(named))
        self._writes([output for output in tensors if output.destination is not None])
        for alias in self._graph.outputs:
            if isinstance(alias, AliasOutput):
                check_outputs(self._graph.inputs, [alias], self._scope(alias))

    def _writes(self, outputs: Sequence[GraphOutput]) -> None:
        """Check what is written into inputs: that it fits, and that no later stage reads what was there before."""
        inputs = {item.name: item for item in self._graph.inputs if isinstance(item, StridedInput)}
        named = [output.destination for output in outputs]
        self._problems.expect(len(set(named)) == len(named), "two tensors are written into one input", listing(named))
        makers = {name: place for place, stage in enumerate(self._graph.stages) for name in targets_of(stage)}
        for output in outputs:
            item, type_ = inputs.get(output.destination or ""), self._types.get(output.tensor)
            if not self._problems.expect(item is not None, f"{output.destination} is no input tensor", output):
                continue
            same = item is None or type_ is None or item.type.dtype == type_.dtype
            self._problems.expect(same, f"{output.destination} is of another type", output)
            for stage in self._graph.stages[makers.get(output.tensor, -1) + 1 :]:
                loads = (node for node in walk(stage) if isinstance(node, Load))
                late = any(load.tensor == output.destination for load in loads)
                self._problems.expect(not late, f"{output.destination} is read after it was written into", stage)

    # -- stages ---------------------------------------------------------------------------------------------------

    def _scope(self, excerpt: Any, loops: Iterable[Loop] = ()) -> Scope:
        symbols = self._sizes.union(loop.index for loop in loops)
        return Scope(self._problems, excerpt, symbols, self._numbers, self._defined)

    def _stage(self, stage: Stage) -> None:
        match stage:
            case Map():
                self._loops(stage, stage.loops)
                check_expression(stage.value, self._scope(stage, stage.loops))
                self._target(stage, stage.target, stage.loops, stage.value.dtype)
            case Concatenate():
                self._concatenate(stage)
            case Reduce():
                self._reduce(stage)
            case Scan():
                scope = self._scope(stage, stage.loops)
                self._loops(stage, stage.loops)
                check_expression(stage.value, scope)
                check_kind(stage.kind, SCAN_KINDS, stage.value.dtype, scope)
                scope.expect(0 <= stage.axis < len(stage.loops), f"there is no loop {stage.axis}")
                self._target(stage, stage.target, stage.loops, stage.value.dtype)
            case Scatter():
                self._scatter(stage)
            case Template():
                self._template(stage)

    def _loops(self, stage: Stage, loops: Iterable[Loop]) -> None:
        for loop in loops:
            is_new = loop.index not in self._indices | self._sizes | self._numbers
            self._problems.expect(is_new, f"the index {loop.index} is used twice", stage)
            self._indices.add(loop.index)
            check_index(loop.size, self._scope(stage))

    def _target(self, stage: Stage, name: str, loops: Sequence[Loop], dtype: torch.dtype) -> None:
        """Check the declared type of a target against the loops and the value it is computed with."""
        type_ = self._types.get(name)
        if type_ is None:
            self._problems.add(f"{name} has no type", stage)
            return
        sizes = TensorType(tuple(loop.size for loop in loops), type_.dtype)
        same = len(type_.sizes) == len(loops) and not any(map(differ, type_.sizes, sizes.sizes))
        self._problems.expect(same, f"{name} is declared as {type_}, its loops make {sizes}", stage)
        check_stored(dtype, type_.dtype, name, self._scope(stage))

    def _concatenate(self, stage: Concatenate) -> None:
        self._loops(stage, stage.loops)
        scope = self._scope(stage, stage.loops)
        if not scope.expect(0 <= stage.axis < len(stage.loops), f"there is no loop {stage.axis}"):
            return
        start: Any = sympy.Integer(0)
        for part in stage.parts:
            check_expression(part.value, scope)
            check_index(part.size, self._scope(stage))
            scope.expect(
                not differ(part.start, start), f"a part starts at {part.start}, the ones before end at {start}"
            )
            self._target(stage, stage.target, stage.loops, part.value.dtype)
            start = start + part.size
        size = stage.loops[stage.axis].size
        scope.expect(not differ(start, size), f"the parts fill {start} of {size}")

    def _reduce(self, stage: Reduce) -> None:
        self._loops(stage, loops_of(stage))
        scope = self._scope(stage, loops_of(stage))
        check_expression(stage.value, scope)
        dtype = check_fold(stage.kind, stage.value, len(stage.targets), scope)
        for name in targets_of(stage):
            self._target(stage, name, stage.loops, dtype)

    def _scatter(self, stage: Scatter) -> None:
        self._loops(stage, loops_of(stage))
        check_expression(stage.base, self._scope(stage, stage.target_loops))
        scope = self._scope(stage, stage.loops)
        for value in expressions_of(stage)[1:]:
            check_expression(value, scope)
        check_place(stage, scope)
        rank = len(stage.target_loops)
        scope.expect(len(stage.destination) == rank, f"{stage.target} has {rank} dimensions, it is written with others")
        check_kind(stage.mode, MODE_KINDS, stage.value.dtype, scope)
        for value in (stage.base, stage.value):
            self._target(stage, stage.target, stage.target_loops, value.dtype)

    def _template(self, stage: Template) -> None:
        loops = loops_of(stage)
        self._loops(stage, loops)
        check_template(stage, self._scope(stage, loops))
        for result in stage.results:
            if result.target is None:
                continue
            type_ = self._types.get(result.target)
            if self._problems.expect(type_ is not None, f"{result.target} has no type", stage) and type_ is not None:
                same = len(type_.sizes) == len(result.index)
                self._problems.expect(same, f"{result.target} has {len(type_.sizes)} dimensions", stage)

    def _define(self, stage: Stage) -> None:
        for name in targets_of(stage):
            self._problems.expect(name not in self._defined, f"{name} is defined twice", stage)
            if name in self._types:
                self._defined[name] = (self._types[name].dtype, len(self._types[name].sizes))
