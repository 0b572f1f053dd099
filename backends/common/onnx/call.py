"""One ATen call as an emitter sees it.

Place: between the walk over a region and the emitters.
Input: an ``OpView`` (arguments by schema name, metas) and the ONNX values of what it reads. Output: helpers that turn
arguments into ONNX values.
Invariants: an emitter reads arguments through this class alone, so numbers that are computed at run time (symbolic
sizes) and literals look the same to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

import torch

from mixbackend.backends.common.onnx.builder import GraphBuilder, Value
from mixbackend.backends.common.onnx.dtypes import promoted
from mixbackend.backends.common.onnx.errors import LoweringError
from mixbackend.contracts import NodeRef, OpView, TensorMeta, is_symbolic

Emitted = Union[Value, tuple[Union[Value, None], ...]]
"""The results of a call: one value, or one per output with ``None`` where it is not read."""

END = 2**63 - 1
"""torch's and ONNX's "to the end" in slices."""


class Call:
    """An ATen call to be written as ONNX nodes.

    Attributes:
        view: the op as it was judged.
        build: the graph under construction.
        used: indices of the outputs that are read.
    """

    def __init__(self, view: OpView, build: GraphBuilder, values: Mapping[str, Emitted], used: frozenset[int]) -> None:
        self.view = view
        self.build = build
        self.used = used
        self._values = values
        self._arguments: dict[str, Any] = dict(view.node.arguments)

    @property
    def out(self) -> TensorMeta:
        """Meta of the first tensor it returns."""
        return self.view.output_tensors[0]

    def output(self, index: int) -> TensorMeta:
        """Meta of one output."""
        meta = self.view.outputs[index]
        assert isinstance(meta, TensorMeta)
        return meta

    def op(self, operator: str, *inputs: Value | None, **attributes: Any) -> Value:
        """One ONNX node with one result."""
        return self.build.op(operator, *inputs, **attributes)

    # --- arguments ---------------------------------------------------------------------------------------------------

    def argument(self, name: str) -> Any:
        """An argument as it stands: a number, a tuple, a ``NodeRef``..."""
        return self._arguments[name]

    def integer(self, name: str) -> int:
        """An argument that is a literal integer."""
        value = self._arguments[name]
        if not isinstance(value, int):
            raise LoweringError(f"{self.view.op}: {name}={value} is no literal integer")
        return value

    def dimension(self, name: str, rank: int) -> int:
        """An argument that names a dimension, counted from the front."""
        return normalized(self.integer(name), rank)

    def dimensions(self, name: str, rank: int) -> tuple[int, ...]:
        """An argument that names dimensions, counted from the front, in the order given."""
        value = self._arguments[name]
        listed = (value,) if isinstance(value, int) else value
        return tuple(normalized(item, rank) for item in listed)

    def has(self, name: str) -> bool:
        """Whether an optional argument was given."""
        return self._arguments.get(name) is not None

    def tensor(self, name: str) -> Value:
        """A tensor argument."""
        return self.value(self._arguments[name])

    def optional(self, name: str) -> Value | None:
        """A tensor argument that may be ``None``."""
        return self.tensor(name) if self.has(name) else None

    def tensors(self, name: str) -> list[Value | None]:
        """A list of tensors."""
        return [None if item is None else self.value(item) for item in self._arguments[name]]

    def value(self, argument: Any) -> Value:
        """The ONNX value of a reference."""
        if not isinstance(argument, NodeRef):
            raise LoweringError(f"{self.view.op}: {argument!r} is no tensor")
        value = self._values[argument.name]
        if not isinstance(value, Value):
            raise LoweringError(f"{self.view.op} reads {argument.name}, which returns several values")
        return value

    def operand(self, name: str, dtype: torch.dtype) -> Value:
        """A tensor or number argument, in a given element type."""
        return self.number(self._arguments[name], dtype)

    def number(self, argument: Any, dtype: torch.dtype) -> Value:
        """A number, literal or computed at run time, or a tensor, in a given element type."""
        if isinstance(argument, NodeRef):
            return self.build.cast(self.value(argument), dtype)
        if isinstance(argument, (bool, int, float)):
            return self.build.constant(argument, dtype)
        raise LoweringError(f"{self.view.op}: {argument!r} is no number")

    def sizes(self, items: Any) -> Value:
        """Integers, literal or computed at run time, as one one-dimensional int64 value."""
        if all(isinstance(item, int) for item in items):
            return self.build.integers(items)
        parts: list[Value] = []
        literal: list[int] = []
        for item in (*items, None):
            if isinstance(item, int):
                literal.append(item)
                continue
            if literal:
                parts.append(self.build.integers(literal))
                literal = []
            if item is not None:
                parts.append(self.op("Reshape", self.number(item, torch.int64), self.build.integers([1])))
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    # --- shapes ------------------------------------------------------------------------------------------------------

    def static_sizes(self, meta: TensorMeta) -> tuple[int, ...]:
        """Sizes that must be known when compiling."""
        if meta.dynamic:
            raise LoweringError(f"{self.view.op}: {meta} has symbolic sizes")
        return tuple(int(size) for size in meta.shape)  # type: ignore[arg-type]

    def reshape(self, value: Value, sizes: Any) -> Value:
        """Reshape to integers, literal or computed; at most one may be -1."""
        return self.op("Reshape", value, self.sizes(sizes), allowzero=None if -1 in sizes else 1)

    def count(self, value: Value, dimensions: tuple[int, ...], dtype: torch.dtype) -> Value:
        """Product of some sizes, a scalar of the given type."""
        sizes = [value.sizes[dimension] for dimension in dimensions]
        if not any(is_symbolic(size) for size in sizes):
            total = 1
            for size in sizes:
                total *= int(size)  # type: ignore[arg-type]
            return self.build.constant(total, dtype)
        parts = [self.build.size(value, dimension) for dimension in dimensions]
        joined = parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)
        return self.build.cast(self.op("ReduceProd", joined, keepdims=0), dtype)

    def promoted(self, *names: str) -> torch.dtype:
        """The dtype in which torch computes with these arguments."""
        operands: list[tuple[torch.dtype, bool] | type] = []
        for name in names:
            value = self._arguments[name]
            meta = self.view.tensor(name)
            if meta is not None:
                operands.append((meta.dtype, meta.rank > 0))
            elif isinstance(value, NodeRef):
                operands.append(float if self.value(value).dtype.is_floating_point else int)
            elif value is not None:
                operands.append(type(value))
        return promoted(*operands)


def normalized(dimension: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dimension + max(rank, 1) if dimension < 0 else dimension
