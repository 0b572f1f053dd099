"""Argument tests that several rules share.

Place: in ``OpRule.arguments`` of the table's entries. Each returns a refusal with what was seen, or ``None``.
"""

from __future__ import annotations

import torch

from mixbackend.contracts import NodeRef, OpView, SymbolicSize, TensorMeta, Unsupported, is_symbolic
from mixbackend.contracts.support import ArgumentTest


def literal(*names: str) -> ArgumentTest:
    """These arguments must be known when compiling."""

    def test(view: OpView) -> Unsupported | None:
        for name in names:
            if not view.has_argument(name):
                continue
            value = view.argument(name)
            items = value if isinstance(value, tuple) else (value,)
            if any(isinstance(item, (NodeRef, SymbolicSize)) for item in items):
                return Unsupported("dynamic-shape", f"{name} is known only at run time")
        return None

    return test


def within_type(*names: str) -> ArgumentTest:
    """Bounds of integers must be values of their own type: beyond it torch wraps around or saturates, by version."""

    def test(view: OpView) -> Unsupported | None:
        (result,) = view.output_tensors
        if result.dtype.is_floating_point or result.dtype is torch.bool:
            return None
        limits = torch.iinfo(result.dtype)
        for name in names:
            value = view.argument(name) if view.has_argument(name) else None
            if isinstance(value, (int, float)) and not limits.min <= value <= limits.max:
                return Unsupported("argument", f"{name}={value} is no value of {result.dtype}")
        return None

    return test


def static(*names: str) -> ArgumentTest:
    """The tensors passed as these arguments must have known sizes."""

    def test(view: OpView) -> Unsupported | None:
        for name in names:
            meta = view.tensor(name)
            if meta is not None and meta.dynamic:
                return Unsupported("dynamic-shape", f"{name} has symbolic sizes: {meta}")
        return None

    return test


def static_from(name: str, first: int) -> ArgumentTest:
    """The sizes of a tensor from one dimension on must be known."""

    def test(view: OpView) -> Unsupported | None:
        meta = view.tensor(name)
        if meta is not None and any(is_symbolic(size) for size in meta.shape[first:]):
            return Unsupported("dynamic-shape", f"{name} has symbolic sizes: {meta}")
        return None

    return test


def rank_of(name: str, low: int, high: int) -> ArgumentTest:
    """Bounds on the rank of one tensor argument."""

    def test(view: OpView) -> Unsupported | None:
        meta = view.tensor(name)
        if meta is not None and not low <= meta.rank <= high:
            return Unsupported("rank", f"{name} has rank {meta.rank}, needed {low} to {high}")
        return None

    return test


def type_of(name: str, allowed: frozenset[torch.dtype]) -> ArgumentTest:
    """The element type of one tensor argument, where others (indices, say) have theirs."""

    def test(view: OpView) -> Unsupported | None:
        meta = view.tensor(name)
        return None if meta is None or meta.dtype in allowed else Unsupported("dtype", f"{name} is {meta.dtype}")

    return test


def absent(*names: str) -> ArgumentTest:
    """These arguments must be ``None`` or false."""

    def test(view: OpView) -> Unsupported | None:
        for name in names:
            value = view.argument(name)
            if value is not None and value is not False:
                return Unsupported("argument", f"{name}={value}, needed none")
        return None

    return test


def floating_output(view: OpView) -> Unsupported | None:
    """The first output must be floating point."""
    meta = view.output_tensors[0]
    return None if meta.dtype.is_floating_point else Unsupported("dtype", f"result is {meta.dtype}")


def safe_divisor(view: OpView) -> Unsupported | None:
    """Integers may only be divided by a literal but zero: a runtime would stop the process where torch raises."""
    tensors = [meta for meta in view.input_tensors if isinstance(meta, TensorMeta)]
    if any(meta.dtype.is_floating_point for meta in (*tensors, *view.output_tensors)):
        return None
    divisor = view.argument("other")
    if isinstance(divisor, (int, float)) and divisor != 0:
        return None
    return Unsupported("argument", "integer division by a value known only at run time may divide by zero")
