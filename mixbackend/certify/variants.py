"""Variants of a call: the same region with other values, other strides, other sizes.

Place: below the properties. Input: a region and the inputs of one call. Output: inputs of another call that the
contract allows as well, or ``None`` where there is none.
Invariants: the given inputs are only read; values stay within those that the sample has, so that what is valid for an
operator (a probability, an index, a positive definite matrix's elements) mostly stays so: eager has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from mixbackend.certify.cases import copy_of
from mixbackend.contracts import Region, SymbolicSize, TensorMeta
from mixbackend.contracts.torch_compat import shape_env_of

_ANY_VALUES = frozenset({"pointwise", "copy", "view", "reduction", "softmax", "matmul", "normalization"})
"""Classes of ops that whole numbers mean nothing special to: no indices, no lengths."""
MOST_ELEMENTS = 1 << 20
"""Of one tensor at other sizes."""


def copies(inputs: Sequence[Any]) -> list[Any]:
    """The inputs in memory of their own."""
    return [copy_of(value) for value in inputs]


def other_values(region: Region, inputs: Sequence[Any]) -> list[Any] | None:
    """The same values in another order; ``None`` where that changes nothing or may not be done."""
    integers = all(view.op_class in _ANY_VALUES for view in region.views)
    changed, given = False, list(inputs)
    for place, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor) or value.numel() < 2:
            continue
        if value.is_floating_point() or value.is_complex() or integers:
            given[place] = _like(value, value.reshape(-1).roll(1).reshape(value.shape))
            changed = changed or not torch.equal(given[place].nan_to_num(), value.nan_to_num())
    return given if changed else None


def positions(region: Region, inputs: Sequence[Any]) -> bool:
    """Whether whole numbers among the inputs may be places in a tensor, which is not to become smaller then."""
    if all(view.op_class in _ANY_VALUES for view in region.views):
        return False
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    return any(not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool) for value in tensors)


def _like(value: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values laid out as a tensor is; where elements of it share memory, the first of them."""
    once = value
    for axis, (size, step) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if step == 0 and size > 1:
            once, values = once.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
    copy: torch.Tensor = copy_of(once)
    return copy.copy_(values).expand(value.shape)


def other_strides(region: Region, inputs: Sequence[Any], way: str) -> list[Any] | None:
    """The same values laid out otherwise: dimensions in ``reversed`` order, or with ``gaps`` and an odd beginning."""
    written = set(region.written)
    # Torch gives its kernels for attention rows without gaps, and they read nothing else right.
    rows = any(view.op_class == "attention" for view in region.views)
    given = [
        _laid(value, way, rows) if isinstance(value, torch.Tensor) and place not in written else copy_of(value)
        for place, value in enumerate(inputs)
    ]
    pairs = zip(inputs, given, strict=True)
    changed = any(
        isinstance(mine, torch.Tensor)
        and (mine.stride() != other.stride() or mine.data_ptr() % 64 != other.data_ptr() % 64)
        for mine, other in pairs
        if isinstance(mine, torch.Tensor) and mine.numel() > 1
    )
    return given if changed else None


def _laid(value: torch.Tensor, way: str, rows: bool) -> torch.Tensor:
    if value.dim() == 0:
        return torch.stack([value, value])[1]
    if way == "reversed":
        order = [*reversed(range(value.dim() - 1)), value.dim() - 1] if rows else [*reversed(range(value.dim()))]
        return value.permute(order).contiguous().permute(order)
    if rows:
        longer = torch.zeros((*value.shape[:-1], value.shape[-1] + 3), dtype=value.dtype, device=value.device)
        return longer[..., 1:-2].copy_(value)
    wide = torch.zeros((*value.shape[:-1], 2 * value.shape[-1] + 1), dtype=value.dtype, device=value.device)
    gapped = wide[..., 1::2]
    return gapped.copy_(value)


def one_for_all(region: Region, inputs: Sequence[Any]) -> list[Any] | None:
    """The same tensor for several inputs: two arguments of a call may be one."""
    if region.written:
        return None
    given = copies(inputs)
    first: dict[tuple[Any, ...], torch.Tensor] = {}
    shared = False
    for place, value in enumerate(given):
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            continue
        known = first.setdefault((tuple(value.shape), value.stride(), value.dtype), value)
        shared = shared or known is not value
        given[place] = known
    return given if shared else None


def at_sizes(region: Region, inputs: Sequence[Any], sizes: Mapping[sympy.Symbol, int]) -> list[Any] | None:
    """The inputs of a call at other values of the region's symbols; ``None`` where these cannot be."""
    given: list[Any] = []
    for item, value in zip(region.inputs, inputs, strict=True):
        if not isinstance(value, torch.Tensor):
            number = _at(item.meta, sizes) if isinstance(item.meta, SymbolicSize) else value
            if number is None:
                return None
            given.append(number)
            continue
        assert isinstance(item.meta, TensorMeta)
        shape, stride = ([_at(size, sizes) for size in part] for part in (item.meta.shape, item.meta.stride))
        known = [size for size in (*shape, *stride) if size is not None and size >= 0]
        if len(known) < 2 * item.meta.rank:
            return None
        resized = _resized(value, known[: item.meta.rank], known[item.meta.rank :])
        if resized is None:
            return None
        given.append(resized)
    return given


def _at(size: Any, sizes: Mapping[sympy.Symbol, int]) -> int | None:
    if not isinstance(size, SymbolicSize):
        return int(size)
    try:
        return int(size.expression.xreplace({symbol: sympy.Integer(value) for symbol, value in sizes.items()}))
    except (TypeError, ValueError, ZeroDivisionError):
        return None


def _resized(value: torch.Tensor, shape: list[int], stride: list[int]) -> torch.Tensor | None:
    """A tensor of another shape from the values of one, again and again."""
    count = math.prod(shape)
    if count > MOST_ELEMENTS or (value.numel() == 0 and count):
        return None
    flat = value.reshape(-1)
    values = flat.repeat(-(-count // max(1, flat.numel())))[:count].reshape(shape)
    if not count:
        return torch.empty(shape, dtype=value.dtype, device=value.device)
    # What is traced as repeated along a dimension is so in every call.
    once = [1 if step == 0 else size for size, step in zip(shape, stride, strict=True)]
    laid = torch.empty_strided(once, stride, dtype=value.dtype, device=value.device)
    return laid.copy_(values[tuple(slice(size) for size in once)]).expand(shape)


def symbols_of(region: Region) -> dict[sympy.Symbol, SymbolicSize]:
    """Symbols that inputs of a region show by themselves."""
    metas = [item.meta for item in region.inputs]
    sizes = [size for meta in metas for size in (meta.shape if isinstance(meta, TensorMeta) else (meta,))]
    shown = [size for size in sizes if isinstance(size, SymbolicSize) and size.expression.is_Symbol]
    return {size.expression: size for size in shown if size.hint is not None}


def allowed(region: Region, sizes: Mapping[sympy.Symbol, int]) -> bool:
    """Whether a traced region is meant for these values of its symbols: ranges, and what was assumed while tracing."""
    for symbol, size in symbols_of(region).items():
        value = sizes[symbol]
        if value < size.lower or (size.upper is not None and value > size.upper):
            return False
    exact = {symbol: sympy.Integer(value) for symbol, value in sizes.items()}
    return all(_holds(guard, exact) for guard in _assumed(region))


def _holds(guard: Any, exact: Mapping[sympy.Symbol, sympy.Integer]) -> bool:
    """What names other symbols says nothing of these."""
    return not guard.free_symbols <= exact.keys() or guard.xreplace(exact) != sympy.false


def _assumed(region: Region) -> list[Any]:
    values = [node.meta.get("val") for node in region.graph_module.graph.nodes]
    environment = next((found for found in map(shape_env_of, values) if found is not None), None)
    return [] if environment is None else [guard.expr for guard in environment.guards]
