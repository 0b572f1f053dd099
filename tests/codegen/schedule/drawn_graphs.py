"""Stage graphs drawn by hand, stage by stage, under names of the test's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.interpret.stages import interpret_stages
from mixbackend.backends.codegen.ir.scalar import Expr, apply
from mixbackend.backends.codegen.ir.stages import GraphOutput, NumberInput, StageGraph, StridedInput, TensorType
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.tensor import Tensor
from mixbackend.backends.codegen.targets.target import TargetTraits


def size(name: str) -> sympy.Symbol:
    """A symbolic size."""
    return sympy.Symbol(name, integer=True, positive=True)


def cpu_traits(**changes: Any) -> TargetTraits:
    """A processor with 16 threads."""
    values: dict[str, Any] = {
        "device_type": "cpu",
        "vector_bytes": 32,
        "scratch_bytes": 1 << 18,
        "parallel_width": 16,
        "dtypes": frozenset({torch.float32, torch.int64, torch.bool}),
    }
    return TargetTraits(**{**values, **changes})


def contiguous(sizes: Sequence[Any]) -> tuple[sympy.Expr, ...]:
    """Row-major strides."""
    strides, step = [], sympy.Integer(1)
    for item in reversed(sizes):
        strides.append(step)
        step = sympy.expand(step * item)
    return tuple(reversed(strides))


class Drawing(Lowering):
    """The constructors of ``Lowering`` without an op: the next stage is called ``self.name``."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.given: list[StridedInput | NumberInput] = []
        self.results: list[GraphOutput] = []

    def called(self, name: str) -> Drawing:
        """Name the next stage."""
        self.name = name
        return self

    def stage_name(self) -> str:
        """The name asked for."""
        return self.name

    def tensor(
        self, name: str, *sizes: Any, strides: Sequence[Any] | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """An input."""
        sizes = tuple(map(sympy.sympify, sizes))
        laid = tuple(map(sympy.sympify, contiguous(sizes) if strides is None else strides))
        self.types[name] = TensorType(sizes, dtype)
        self.given.append(StridedInput(name, self.types[name], laid))
        return Tensor(sizes, dtype, self._reader(name, dtype))

    def number(self, name: str) -> sympy.Symbol:
        """An input that is a size."""
        symbol = size(name)
        self.given.append(NumberInput(name, symbol))
        return symbol

    def pointwise(self, name: str, sizes: Sequence[Any], value: Callable[..., Expr]) -> Tensor:
        """A map; ``value`` takes one index per dimension."""
        return self.called(name).map(sizes, torch.float32, lambda index: value(*index))

    def fold(
        self, name: str, sizes: Sequence[Any], reduced: Sequence[Any], value: Callable[..., Expr], kind: str = "sum"
    ) -> Tensor:
        """A reduction; ``value`` takes the kept and the reduced indices."""
        made = self.called(name).reduce(kind, sizes, reduced, lambda kept, inner: value(*kept, *inner), [torch.float32])  # type: ignore[arg-type]
        return made[0]

    def output(self, name: str, strides: Sequence[Any] | None = None) -> None:
        """Let a target leave."""
        laid = contiguous(self.types[name].sizes) if strides is None else strides
        self.results.append(GraphOutput(name, name, tuple(map(sympy.sympify, laid))))

    def graph(self, *outputs: str) -> StageGraph:
        """What was drawn; the outputs named here leave in row-major order."""
        for name in outputs:
            self.output(name)
        return StageGraph(tuple(self.given), tuple(self.types.items()), tuple(self.stages), tuple(self.results))


def add(*values: Expr) -> Expr:
    """Sum of scalars."""
    total = values[0]
    for value in values[1:]:
        total = apply("add", total, value)
    return total


def exp(value: Expr) -> Expr:
    """Something expensive."""
    return apply("exp", value)


def random_inputs(graph: StageGraph, symbols: dict[sympy.Symbol, int] | None = None) -> list[torch.Tensor | int]:
    """Inputs of a graph, with small whole numbers as values, so that sums are exact in any order."""
    generator = torch.Generator().manual_seed(1)
    made: list[torch.Tensor | int] = []
    for item in graph.inputs:
        if isinstance(item, NumberInput):
            made.append((symbols or {})[item.symbol])
            continue
        sizes = [int(part.subs(symbols or {})) for part in item.type.sizes]
        strides = [int(part.subs(symbols or {})) for part in item.strides]
        values = torch.randint(0, 4, sizes, generator=generator).to(item.type.dtype)
        made.append(torch.empty_strided(sizes, strides, dtype=item.type.dtype).copy_(values))
    return made


def assert_equal_graphs(first: StageGraph, second: StageGraph, symbols: dict[sympy.Symbol, int] | None = None) -> None:
    """Both compute the same from the same inputs, in the same sizes and strides."""
    inputs = random_inputs(first, symbols)
    expected, found = interpret_stages(first, inputs), interpret_stages(second, inputs)
    for one, other in zip(expected, found, strict=True):
        assert (one.shape, one.stride()) == (other.shape, other.stride())
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
