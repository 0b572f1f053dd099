"""What inductor compiles wrong, or not at all, although it has something for the operator.

Place: asked by ``backend`` before it looks an operator up. Input: a use of an operator. Output: a refusal, or nothing.
Most of it was found by ``mixbackend certify``; inductor says nothing of it itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mixbackend.contracts import OpView, SymbolicSize, TensorMeta, Unsupported, ValueMeta, is_symbolic
from mixbackend.contracts.torch_compat import inductor_attends_on_processor

DTYPES = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16}
    | {torch.int8, torch.uint8, torch.bool}
)

WHOLE = frozenset({"higher_order.flex_attention", "higher_order.flex_attention_backward"})
"""Operators with subgraphs for which it has kernels: attention with functions of its own."""

_KNOWN_SIZES: Mapping[str, str] = {
    "aten.slice_scatter.default": "it assumes where the slice ends",
    "aten.std_mean.correction": "of nothing it gives a number where eager gives NaN",
    "aten.var_mean.correction": "of nothing it gives a number where eager gives NaN",
    "aten._embedding_bag_forward_only.default": "bags of nothing end the process",
    "aten._unsafe_masked_index.default": "in tensors of nothing it reads beside them",
    "aten._unsafe_masked_index_put_accumulate.default": "in tensors of nothing it writes beside them",
}
"""Operators that it compiles for known sizes alone, none of them zero, and why."""


def refusal(view: OpView, device_types: frozenset[str]) -> Unsupported | None:
    """Why inductor is not asked for this use."""
    return (
        _refuse_attention(view)
        or _refuse_window(view)
        or _refuse_sizes(view)
        or _refuse_statistics(view)
        or _refuse_bytes(view)
        or _refuse_values(view, device_types)
    )


def _refuse_values(view: OpView, device_types: frozenset[str]) -> Unsupported | None:
    """Refuse values that inductor would not compile: odd dtypes, other devices, sizes that depend on data."""
    metas: list[ValueMeta] = [*(item.meta for item in view.inputs), *view.outputs]
    for meta in metas:
        if isinstance(meta, TensorMeta) and meta.dtype not in DTYPES and not _is_random_state(meta, view):
            return Unsupported("dtype", f"inductor does not compile {meta.dtype}")
        if isinstance(meta, TensorMeta) and meta.device.type not in device_types:
            return Unsupported("device", f"{meta} is not on {', '.join(sorted(device_types))}")
        sizes = (*meta.shape, *meta.stride) if isinstance(meta, TensorMeta) else (meta,)
        for size in sizes:
            if isinstance(size, SymbolicSize) and not size.expression.is_integer:
                return Unsupported("argument", f"{view.op} reads the symbolic number {size}, which is no integer")
            if isinstance(size, SymbolicSize) and size.hint is None:
                return Unsupported("data-dependent", f"size {size} depends on values")
    return None


def _refuse_attention(view: OpView) -> Unsupported | None:
    """On a processor its attention is for inference, and for CPUs that its template is written for."""
    if view.op not in WHOLE or any(meta.device.type != "cpu" for meta in view.input_tensors):
        return None
    if view.phase != "inference" or not inductor_attends_on_processor():
        return Unsupported("declined", "inductor has a kernel for this attention in inference, on CPUs with AVX2")
    return None


def _refuse_window(view: OpView) -> Unsupported | None:
    """Convolutions with windows that are no numbers: lowering them assumes which of several sizes is larger, and that
    is no condition on one size, as a region's preconditions are."""
    if view.op != "aten.convolution.default":
        return None
    weight = view.tensor("weight")
    if weight is None or not any(map(is_symbolic, weight.shape[2:])):
        return None
    return Unsupported("dynamic-shape", f"a window of symbolic size, {weight}; needed numbers")


def _refuse_sizes(view: OpView) -> Unsupported | None:
    why = _KNOWN_SIZES.get(view.op)
    if why is None or not any(is_symbolic(size) or size == 0 for meta in view.input_tensors for size in meta.shape):
        return None
    return Unsupported("dynamic-shape", f"{view.op} of symbolic sizes, or of nothing: {why}")


def _refuse_statistics(view: OpView) -> Unsupported | None:
    """A batch norm that updates its statistics in place, which its schema does not say."""
    if view.op != "aten.native_batch_norm.default" or not view.argument("training"):
        return None
    if view.tensor("running_mean") is None and view.tensor("running_var") is None:
        return None
    return Unsupported("effect", "inductor writes the statistics of a batch norm into its inputs")


def _refuse_bytes(view: OpView) -> Unsupported | None:
    """``any`` of bytes is a byte in eager, and a truth value in inductor."""
    if view.op.startswith("aten.any.") and any(meta.dtype is torch.uint8 for meta in view.input_tensors):
        return Unsupported("dtype", f"inductor gives a truth value for {view.op} of {torch.uint8}")
    return None


def _is_random_state(meta: TensorMeta, view: OpView) -> bool:
    """The state that attention on a GPU hands from its forward to its backward: passed on, never computed with."""
    return meta.dtype is torch.uint64 and (view.op_class == "attention" or view.op == "getitem")
