"""Rules of conversions between types, and of copies.

Place: registered by ``lower.table``.
Semantics: a conversion rounds as ``Tensor.to`` does even where its result is not stored; memory formats and strides are
the business of outputs; a copy is storage of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mixbackend.backends.codegen.lower.broadcast import read, refuse_undecided
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Tensor
from mixbackend.backends.codegen.lower.view import alias
from mixbackend.contracts import NodeRef


@rule("aten._to_copy.default")
def to_copy(lowering: Lowering, self: Tensor, **options: Any) -> Tensor:
    """Another type; never another device."""
    assert lowering.view is not None
    device = lowering.view.input_tensors[0].device
    if lowering.output.device != device:
        raise RefusedError("device", f"a copy from {device} to {lowering.output.device}")
    if lowering.output_dtype == self.dtype:
        return alias(self)
    return lowering.map(self.sizes, lowering.output_dtype, lambda index: read(self, index, lowering.output_dtype))


@rule("aten.clone.default", "aten.lift_fresh_copy.default")
def clone(lowering: Lowering, self: Tensor, **options: Any) -> Tensor:
    """The same values."""
    return alias(self)


@rule("aten.copy.default")
def copy(lowering: Lowering, self: Tensor, src: Tensor, non_blocking: bool) -> Tensor:
    """The values of ``src`` in sizes and type of ``self``."""
    refuse_undecided(lowering, (src,), self.sizes)
    return lowering.map(self.sizes, self.dtype, lambda index: read(src, index, self.dtype))


@rule("aten.copy_.default")
def copy_into(lowering: Lowering, self: Tensor, src: Tensor, non_blocking: bool) -> Tensor:
    """The values of ``src`` in the memory of a region input, where all later reads see them."""
    refuse_undecided(lowering, (src,), self.sizes)
    return written_into(lowering, self, lambda: src)


def written_into(lowering: Lowering, self: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """A tensor with memory that holds another value from now on.

    Args:
        make: the value; not asked for where writing is refused.
    """
    assert lowering.view is not None
    written = None if self.strided is None else _written_input(lowering, self)
    made = make()
    value = lowering.map(self.sizes, self.dtype, lambda index: read(made, index, self.dtype))
    if written is not None:
        lowering.write_input(written, value)
        return self
    # Memory that the region made: its name stands for the new value.
    target = lowering.view.argument("self")
    assert isinstance(target, NodeRef)
    lowering.bind(target.name, value)
    return value


def _written_input(lowering: Lowering, target: Tensor) -> str:
    """The input that is all of a tensor, each element once.

    Raises:
        RefusedError: it is a part of one, or its elements share memory.
    """
    view = target.strided
    assert view is not None
    if lowering.value(view.input).strided != view or lowering.types[view.input].sizes != target.sizes:
        raise RefusedError("effect", "only a whole region input can be written into")
    if any(size != 1 and not stride.is_positive for size, stride in zip(target.sizes, view.strides, strict=True)):
        raise RefusedError("layout", f"elements of {view.input} share memory, strides {list(view.strides)}")
    return view.input


@rule("aten.detach.default", "aten.alias.default", "aten.lift_fresh.default")
def same(lowering: Lowering, self: Tensor) -> Tensor:
    """The tensor itself."""
    return self


@rule("getitem")
def result_of(lowering: Lowering, self: tuple[Tensor | None, ...], index: int) -> Tensor:
    """One of an op's results."""
    result = self[index]
    if result is None:
        raise RefusedError("argument", f"result {index} has no values")
    return result
