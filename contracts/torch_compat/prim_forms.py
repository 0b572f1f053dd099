"""Decompositions of our own, for the levels ``core_aten`` and ``prims``.

Place: a part of the door; ``operators.decomposition_table`` lays them over torch's. They stand where torch has none, or
one that writes into memory it has made, reads memory by position, or computes another second result than eager.
Invariants: every function means what its operator means, on any strides, and is made of pure operators; strides of
results are not promised. What a function calls is decomposed in its turn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten, prims = torch.ops.aten, torch.ops.prims
Table = dict[Any, Callable[..., Any]]


# --- shapes ----------------------------------------------------------------------------------------------------------


def _reshape(x: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    known = math.prod(size for size in shape if not (isinstance(size, int) and size == -1))
    whole = [x.numel() // known if isinstance(size, int) and size == -1 else size for size in shape]
    if whole:
        return prims.reshape.default(x, whole)
    return prims.squeeze.default(x, list(range(x.dim()))) if x.dim() else prims.view_of.default(x)


def _select(x: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    dim = dim % x.dim()
    start = index + x.shape[dim] if index < 0 else index
    return prims.squeeze.default(aten.slice.Tensor(x, dim, start, start + 1), [dim])


def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    places = _reshape(index, [1]) if index.dim() == 0 else index
    if x.dim() == 0:
        return _reshape(aten.index.Tensor(_reshape(x, [1]), [places]), [])
    return aten.index.Tensor(x, [*[None] * (dim % x.dim()), places])


def _split_with_sizes(x: torch.Tensor, sizes: Sequence[Any], dim: int = 0) -> list[torch.Tensor]:
    ends = list(itertools.accumulate(sizes))
    return [aten.slice.Tensor(x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _split(x: torch.Tensor, size: Any, dim: int = 0) -> list[torch.Tensor]:
    whole = x.shape[dim]
    if whole == 0 or size == 0:
        return [aten.slice.Tensor(x, dim, 0, whole)]
    # How many parts there are is settled where the graph is captured; how long they are need not be.
    count = int((whole + size - 1) // size)
    ends = [*((place + 1) * size for place in range(count - 1)), whole]
    return [aten.slice.Tensor(x, dim, place * size, end) for place, end in enumerate(ends)]


def _stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    dim = dim % (tensors[0].dim() + 1)
    return aten.cat.default([aten.unsqueeze.default(x, dim) for x in tensors], dim)


def _slice_backward(grad: torch.Tensor, sizes: Sequence[Any], dim: int, start: Any, end: Any, step: Any) -> Any:
    zeros = _full(sizes, 0, dtype=grad.dtype, device=grad.device)
    return aten.slice_scatter.default(zeros, grad, dim, start, end, step)


def _repeat(x: torch.Tensor, repeats: Sequence[Any]) -> torch.Tensor:
    sizes = [*[1] * (len(repeats) - x.dim()), *x.shape]
    apart = [part for size in sizes for part in (1, size)]
    wide = [part for count, size in zip(repeats, sizes, strict=True) for part in (count, size)]
    spread = prims.broadcast_in_dim.default(_reshape(x, apart), wide, list(range(len(wide))))
    return _reshape(spread, [count * size for count, size in zip(repeats, sizes, strict=True)])


def _pad(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> torch.Tensor:
    result = aten.clone.default(x)
    for place in range(len(pad) // 2):
        dim = x.dim() - 1 - place
        before, after = pad[2 * place], pad[2 * place + 1]
        if before < 0 or after < 0:
            end = result.shape[dim] + min(after, 0)
            result = aten.slice.Tensor(result, dim, max(-before, 0), end)
        parts = [_filled(result, dim, before, value), result, _filled(result, dim, after, value)]
        kept = [part for part in parts if part is not None]
        result = prims.cat.default(kept, dim) if len(kept) > 1 else result
    return result


def _filled(x: torch.Tensor, dim: int, size: Any, value: Any) -> torch.Tensor | None:
    if size <= 0:
        return None
    return _full([*x.shape[:dim], size, *x.shape[dim + 1 :]], value, dtype=x.dtype, device=x.device)


def _positions(length: Any, start: Any, step: Any, device: torch.device) -> torch.Tensor:
    return prims.iota.default(length, start=start, step=step, dtype=torch.int64, device=device, requires_grad=False)


def _unfold(x: torch.Tensor, dim: int, size: Any, step: Any) -> torch.Tensor:
    if x.dim() == 0:
        return _reshape(aten.slice.Tensor(_reshape(x, [1]), 0, 0, size), [size])
    dim = dim % x.dim()
    windows = (x.shape[dim] - size) // step + 1
    first = prims.broadcast_in_dim.default(_positions(windows, 0, step, x.device), [windows, size], [0])
    inner = prims.broadcast_in_dim.default(_positions(size, 0, 1, x.device), [windows, size], [1])
    found = aten.index.Tensor(x, [*[None] * dim, prims.add.default(first, inner)])
    return aten.permute.default(found, [*range(dim + 1), *range(dim + 2, x.dim() + 1), dim + 1])


def _diagonal(x: torch.Tensor, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    down, right = max(-offset, 0), max(offset, 0)
    length = max(min(x.shape[dim1] - down, x.shape[dim2] - right), 0)
    others = [dim for dim in range(x.dim()) if dim not in (dim1, dim2)]
    moved = aten.permute.default(x, [dim1, dim2, *others])
    found = aten.index.Tensor(moved, [_positions(length, start, 1, x.device) for start in (down, right)])
    return aten.permute.default(found, [*range(1, len(others) + 1), 0])


def _diagonal_scatter(
    x: torch.Tensor, src: torch.Tensor, offset: Any = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    down, right = max(-offset, 0), max(offset, 0)
    others = [dim for dim in range(x.dim()) if dim not in (dim1, dim2)]
    order = [dim1, dim2, *others]
    moved = aten.permute.default(x, order)
    places = [_positions(src.shape[-1], start, 1, x.device) for start in (down, right)]
    values = aten.permute.default(src, [src.dim() - 1, *range(src.dim() - 1)])
    written = aten.index_put.default(moved, places, values)
    return aten.permute.default(written, [order.index(dim) for dim in range(x.dim())])


def _as_strided(x: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Any:
    """What a decomposition has just made, in another shape; everything else stays as it is, and is then refused."""
    dense = [math.prod(size[place + 1 :]) for place in range(len(size))]
    moved = any(str(step) != str(wanted) for step, wanted in zip(stride, dense, strict=True))
    if moved or storage_offset or not x.is_contiguous() or math.prod(size) != x.numel():
        return NotImplemented
    return _reshape(x, size)


# --- values ----------------------------------------------------------------------------------------------------------


def _full(shape: Sequence[Any], value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    device = torch.device("cpu") if device is None else device
    return prims.full.default(shape, value, dtype=dtype or _type_of(value), device=device, requires_grad=False)


def _type_of(value: Any) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    given = torch.get_default_dtype()
    return given if not isinstance(value, complex) else {torch.float64: torch.complex128}.get(given, torch.complex64)


def _like(value: Any) -> Callable[..., torch.Tensor]:
    def filled(x: torch.Tensor, *given: Any, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
        return _full(x.shape, given[0] if given else value, dtype=dtype or x.dtype, device=device or x.device)

    return filled


def _new(value: Any) -> Callable[..., torch.Tensor]:
    def filled(x: torch.Tensor, shape: Any, *given: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return _full(shape, given[0] if given else value, dtype=dtype or x.dtype, device=device or x.device)

    return filled


def _scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    return _full([], value, dtype=dtype or torch.get_default_dtype(), device=device)


def _copy(x: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return aten.clone.default(aten.expand.default(aten._to_copy.default(src, dtype=x.dtype, device=x.device), x.shape))


def _bucketize(
    x: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    return aten.searchsorted.Tensor(boundaries, x, out_int32=out_int32, right=right)


def _max(x: torch.Tensor) -> torch.Tensor:
    return aten.amax.default(x, [])


def _min(x: torch.Tensor) -> torch.Tensor:
    return aten.amin.default(x, [])


def _shrink_backward(grad: torch.Tensor, x: torch.Tensor, lambd: float) -> torch.Tensor:
    outside = aten.bitwise_or.Tensor(aten.lt.Scalar(x, -lambd), aten.gt.Scalar(x, lambd))
    # What is no number passes the gradient on, as in eager.
    outside = aten.bitwise_or.Tensor(outside, aten.ne.Tensor(x, x))
    return aten.where.self(outside, grad, _like(0)(grad))


_ONE_SIXTH = 0.16666667163372039794921875
"""In float32, which eager multiplies by in every type."""


def _hardsigmoid_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    inside = aten.bitwise_and.Tensor(aten.gt.Scalar(x, -3.0), aten.lt.Scalar(x, 3.0))
    wide = aten.mul.Tensor(aten._to_copy.default(grad, dtype=_computed_in(grad.dtype)), _ONE_SIXTH)
    return aten.where.self(inside, aten._to_copy.default(wide, dtype=grad.dtype), _number(0.0, grad))


def _take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    # Torch's reads an index of no dimensions as a number, which is a size that values decide.
    picked = aten.index.Tensor(aten.reshape.default(x, [-1]), [aten.reshape.default(index, [-1])])
    return aten.reshape.default(picked, index.shape)


# --- attention -------------------------------------------------------------------------------------------------------


def _scores(
    query: torch.Tensor, key: torch.Tensor, is_causal: bool, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    """Scaled products of queries and keys of one batch dimension, with what is masked at minus infinity."""
    products = aten.mul.Tensor(aten.bmm.default(query, aten.permute.default(key, [0, 2, 1])), scale)
    rows, columns = query.shape[1], key.shape[1]
    if is_causal:
        row, column = (aten.arange.start_step(0, length, 1, device=query.device) for length in (rows, columns))
        seen = aten.le.Tensor(column, aten.unsqueeze.default(row, 1))
        products = aten.where.self(seen, products, _number(-math.inf, products))
    return products if mask is None else aten.add.Tensor(products, mask)


def _folded(x: torch.Tensor, heads: Any, dtype: torch.dtype) -> torch.Tensor:
    """One batch dimension, in the type that is computed in; shared heads repeated."""
    batch, own, length, width = x.shape
    wide = aten._to_copy.default(x, dtype=dtype) if x.dtype != dtype else x
    if own != heads:
        spread = aten.expand.default(aten.unsqueeze.default(wide, 2), [batch, own, heads // own, length, width])
        return _flat(spread, [batch * heads, length, width])
    return _flat(wide, [batch * heads, length, width])


def _flat(x: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    return aten.view.default(aten.clone.default(x, memory_format=torch.contiguous_format), shape)


def _wide_mask(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, dtype: Any) -> torch.Tensor | None:
    if mask is None:
        return None
    batch, heads, rows, _ = query.shape
    if mask.dtype == torch.bool:
        mask = aten.where.self(mask, _number(0.0, query), _number(-math.inf, query))
    whole = aten.expand.default(aten._to_copy.default(mask, dtype=dtype), [batch, heads, rows, key.shape[2]])
    return _flat(whole, [batch * heads, rows, key.shape[2]])


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return aten.full.default([], value, dtype=like.dtype, device=like.device)


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The second result is the logarithm of each row's sum, as eager's kernel has it; torch's own decomposition gives
    the weights there. Rows that see nothing are zeros."""
    batch, heads, rows, width = query.shape
    dtype = _computed_in(query.dtype)
    q, k, v = (_folded(x, heads, dtype) for x in (query, key, value))
    mask = _wide_mask(attn_mask, query, key, dtype)
    scores = _scores(q, k, is_causal, mask, width**-0.5 if scale is None else scale)
    top = aten.amax.default(scores, [-1], True)
    blind = aten.eq.Scalar(top, -math.inf)
    top = aten.where.self(blind, _number(0.0, top), top)
    weights = aten.exp.default(aten.sub.Tensor(scores, top))
    total = aten.sum.dim_IntList(weights, [-1], True)
    total = aten.where.self(blind, _number(1.0, total), total)
    result = aten.div.Tensor(aten.bmm.default(weights, v), total)
    logarithm = aten.add.Tensor(top, aten.log.default(total))
    result = aten.view.default(result, [batch, heads, rows, v.shape[-1]])
    return aten._to_copy.default(result, dtype=query.dtype), aten.view.default(logarithm, [batch, heads, rows])


def _attention_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, heads, rows, width = query.shape
    dtype = _computed_in(query.dtype)
    factor = width**-0.5 if scale is None else scale
    q, k, v, result, grad = (_folded(x, heads, dtype) for x in (query, key, value, out, grad_out))
    mask = _wide_mask(attn_mask, query, key, dtype)
    logarithm = _flat(aten._to_copy.default(logsumexp, dtype=dtype), [batch * heads, rows, 1])
    weights = aten.exp.default(aten.sub.Tensor(_scores(q, k, is_causal, mask, factor), logarithm))
    grad_value = aten.bmm.default(aten.permute.default(weights, [0, 2, 1]), grad)
    of_weights = aten.bmm.default(grad, aten.permute.default(v, [0, 2, 1]))
    level = aten.sum.dim_IntList(aten.mul.Tensor(grad, result), [-1], True)
    of_scores = aten.mul.Tensor(aten.mul.Tensor(weights, aten.sub.Tensor(of_weights, level)), factor)
    grad_query = aten.bmm.default(of_scores, k)
    grad_key = aten.bmm.default(aten.permute.default(of_scores, [0, 2, 1]), q)
    given = ((grad_query, query), (grad_key, key), (grad_value, value))
    return tuple(_unfolded(grad, like, heads) for grad, like in given)  # type: ignore[return-value]


def _unfolded(grad: torch.Tensor, like: torch.Tensor, heads: Any) -> torch.Tensor:
    batch, own, length, width = like.shape
    apart = aten.view.default(grad, [batch, own, heads // own, length, width])
    return aten._to_copy.default(aten.sum.dim_IntList(apart, [2]), dtype=like.dtype)


_ATTENTION: Table = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}
_AS_EAGER: Table = {
    aten.hardsigmoid_backward.default: _hardsigmoid_backward,
    aten.take.default: _take,
}
_PRIMS: Table = {
    aten.reshape.default: _reshape,
    aten.view.default: _reshape,
    aten.view_copy.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten._reshape_copy.default: _reshape,
    aten.select.int: _select,
    aten.select_copy.int: _select,
    aten.as_strided.default: _as_strided,
    aten.index_select.default: _index_select,
    aten.split.Tensor: _split,
    aten.split_copy.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.split_with_sizes_copy.default: _split_with_sizes,
    aten.unsafe_split.Tensor: _split,
    aten.unsafe_split_with_sizes.default: _split_with_sizes,
    aten.stack.default: _stack,
    aten.slice_backward.default: _slice_backward,
    aten.repeat.default: _repeat,
    aten.constant_pad_nd.default: _pad,
    aten.unfold.default: _unfold,
    aten.unfold_copy.default: _unfold,
    aten.diagonal.default: _diagonal,
    aten.diagonal_copy.default: _diagonal,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.full.default: _full,
    aten.full_like.default: _like(0),
    aten.zeros_like.default: _like(0),
    aten.ones_like.default: _like(1),
    aten.new_full.default: _new(0),
    aten.new_zeros.default: _new(0),
    aten.new_ones.default: _new(1),
    aten.scalar_tensor.default: _scalar_tensor,
    aten.copy.default: _copy,
    aten.bucketize.Tensor: _bucketize,
    aten.lift_fresh_copy.default: aten.clone.default,
    aten.max.default: _max,
    aten.min.default: _min,
    aten.hardshrink_backward.default: _shrink_backward,
    aten.softshrink_backward.default: _shrink_backward,
}
OURS: dict[str, Table] = {"core_aten": {**_AS_EAGER, **_ATTENTION}, "prims": {**_PRIMS, **_AS_EAGER, **_ATTENTION}}
