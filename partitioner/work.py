"""How much an op has to do, on any backend.

Place: below the roofline cost model; also used to read probes.
Input: an ``OpView``. Output: FLOP, and stored bytes of tensors.
Invariants: pure; symbolic sizes count with their hints; no guard is added; unknown operators get a modest guess.
Non-goals: seconds. Those need a machine and a backend, see ``roofline``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mixbackend.contracts import OpTag, OpView, TensorMeta, hint_of
from mixbackend.contracts.rate_rows import base_name

_LEFT_OPERAND = {
    "mm": "self",
    "bmm": "self",
    "matmul": "self",
    "mv": "self",
    "dot": "self",
    "linear": "input",
    "addmm": "mat1",
    "_addmm_activation": "mat1",
    "addmv": "mat",
    "baddbmm": "batch1",
    "addbmm": "batch1",
    "_scaled_mm": "self",
    "_weight_int4pack_mm_for_cpu": "self",
}
_ATTENTION_BACKWARD = 2.5
"""Five products where the forward has two."""

# FLOP per element, near what vectorised libraries need for full accuracy.
_POINTWISE: dict[str, float] = {
    "gelu": 16.0,
    "gelu_backward": 24.0,
    "erf": 14.0,
    "erfc": 16.0,
    "erfinv": 24.0,
    "exp": 8.0,
    "exp2": 8.0,
    "expm1": 10.0,
    "log": 10.0,
    "log2": 10.0,
    "log10": 10.0,
    "log1p": 12.0,
    "pow": 20.0,
    "sin": 12.0,
    "cos": 12.0,
    "tan": 18.0,
    "tanh": 12.0,
    "sigmoid": 10.0,
    "silu": 11.0,
    "silu_backward": 14.0,
    "mish": 24.0,
    "mish_backward": 30.0,
    "softplus": 18.0,
    "elu": 9.0,
    "atan2": 24.0,
    "lgamma": 40.0,
    "digamma": 40.0,
    "div": 3.0,
    "reciprocal": 3.0,
    "sqrt": 3.0,
    "rsqrt": 4.0,
    "hardswish": 4.0,
    "lerp": 3.0,
    "addcmul": 3.0,
    "addcdiv": 5.0,
}
_POWERS: dict[float, float] = {2.0: 1.0, 3.0: 2.0, 0.5: 3.0, -0.5: 4.0, -1.0: 3.0, -2.0: 4.0}
"""FLOP of powers that all backends compute as products, roots and quotients."""
_PER_INPUT_ELEMENT: dict[str, float] = {
    "var": 3.0,
    "var_mean": 3.0,
    "std": 3.0,
    "std_mean": 3.0,
    "logsumexp": 12.0,
    "_safe_softmax": 14.0,
    "_softmax": 14.0,
    "_log_softmax": 14.0,
    "_softmax_backward_data": 4.0,
    "_log_softmax_backward_data": 12.0,
}
_NORMALIZATION = 8.0
_NORMALIZATION_BACKWARD = 14.0
_BATCH_NORM_WITHOUT_STATISTICS = 3.0
_RANDOM = 12.0


def flops_of(view: OpView) -> float:
    """Floating-point operations of one op by the hints of its sizes, transcendental functions at their usual price."""
    if OpTag.VIEW in view.node.tags or view.op_class == "view":
        return 0.0
    count = _COUNTS.get(view.op_class, _one_per_element)
    return float(count(view))


def dtype_of(view: OpView) -> str:
    """Name of the dtype an op computes in: the first floating-point tensor that it reads or makes."""
    tensors = (*view.input_tensors, *view.output_tensors)
    floating = [meta.dtype for meta in tensors if meta.dtype.is_floating_point or meta.dtype.is_complex]
    dtypes = floating or [meta.dtype for meta in tensors] or [torch.float32]
    return str(dtypes[0]).removeprefix("torch.")


def stored_bytes(meta: TensorMeta) -> int:
    """Bytes behind a tensor: what is expanded without a copy counts once."""
    steps = zip(meta.shape, meta.stride, strict=True)
    return math.prod(hint_of(size) for size, stride in steps if hint_of(stride) != 0) * meta.dtype.itemsize


# --- counts by class -------------------------------------------------------------------------------------------------


def _tensor(view: OpView, name: str) -> TensorMeta | None:
    return view.tensor(name) if view.has_argument(name) else None


def _output_elements(view: OpView) -> float:
    return max((meta.elements() for meta in view.output_tensors), default=0)


def _input_elements(view: OpView) -> float:
    return max((meta.elements() for meta in view.input_tensors), default=0)


def _one_per_element(view: OpView) -> float:
    return max(_input_elements(view), _output_elements(view))


def _matmul(view: OpView) -> float:
    left = _tensor(view, _LEFT_OPERAND.get(base_name(view), ""))
    if left is None or not left.shape:
        return _one_per_element(view)
    terms = hint_of(left.shape[-1]) * (hint_of(left.shape[0]) if base_name(view) == "addbmm" else 1)
    return 2.0 * terms * _output_elements(view)


def _convolution(view: OpView) -> float:
    weight = _tensor(view, "weight")
    if weight is None or not weight.elements():
        return _one_per_element(view)
    transposed = view.has_argument("transposed") and view.argument("transposed") is True
    backward = base_name(view) == "convolution_backward"
    near = _tensor(view, "input")
    far = _tensor(view, "grad_output") if backward else view.output_tensors[0]
    positions = near if transposed else far
    if positions is None:
        return _one_per_element(view)
    once = 2.0 * positions.elements() * weight.elements() / hint_of(weight.shape[0])
    return once * _wanted_gradients(view) if backward else once


def _wanted_gradients(view: OpView) -> int:
    """How many of the gradients for input and weight are asked for; that of the bias is only a sum."""
    mask = view.argument("output_mask")
    return sum(1 for wanted in mask[:2] if wanted is True) if isinstance(mask, tuple) else 2


def _attention(view: OpView) -> float:
    query, key, value = (_tensor(view, name) for name in ("query", "key", "value"))
    if query is None or key is None or value is None or query.rank < 2:
        return _one_per_element(view)
    rows = query.elements() / max(hint_of(query.shape[-1]), 1)
    products = 2.0 * rows * hint_of(key.shape[-2]) * (hint_of(query.shape[-1]) + hint_of(value.shape[-1]))
    causal = view.has_argument("is_causal") and view.argument("is_causal") is True
    factor = _ATTENTION_BACKWARD if base_name(view).endswith("_backward") else 1.0
    return products * factor * (0.5 if causal else 1.0)


def _normalization(view: OpView) -> float:
    name = base_name(view)
    if name.endswith("_backward"):
        return _NORMALIZATION_BACKWARD * _input_elements(view)
    without_statistics = name.endswith("_no_training") or (
        view.has_argument("training") and view.argument("training") is False
    )
    return (_BATCH_NORM_WITHOUT_STATISTICS if without_statistics else _NORMALIZATION) * _input_elements(view)


def _per_input_element(view: OpView) -> float:
    return _PER_INPUT_ELEMENT.get(base_name(view), 1.0) * _input_elements(view)


def _pointwise(view: OpView) -> float:
    return _flops_per_element(view) * _output_elements(view)


def _flops_per_element(view: OpView) -> float:
    usual = _POINTWISE.get(base_name(view), 1.0)
    exponent = view.argument("exponent") if view.op == "aten.pow.Tensor_Scalar" else None
    return _POWERS.get(float(exponent), usual) if isinstance(exponent, int | float) else usual


def _pooling(view: OpView) -> float:
    window = view.argument("kernel_size") if view.has_argument("kernel_size") else None
    if isinstance(window, tuple):
        sizes = [size for size in window if isinstance(size, int)]
        return math.prod(sizes) ** (2 if len(sizes) == 1 and "2d" in view.op else 1) * _output_elements(view)
    if "bilinear" in view.op or "grid_sampler" in view.op:
        return 8.0 * _output_elements(view)
    return (32.0 if "bicubic" in view.op else 1.0) * _one_per_element(view)


def _scatter(view: OpView) -> float:
    """What is added or moved; the untouched rest is copied, which is traffic."""
    sources = [meta.elements() for name in ("src", "values", "source", "grad_output") if (meta := _tensor(view, name))]
    return max(sources, default=_output_elements(view))


def _copy(view: OpView) -> float:
    """Nothing but traffic, unless the order of elements changes."""
    source = view.input_tensors[0] if view.input_tensors else None
    return 0.0 if source is None or source.contiguous() else _output_elements(view)


def _sort(view: OpView) -> float:
    elements = _input_elements(view)
    return elements * max(math.log2(max(elements, 2)), 1.0)


_COUNTS: dict[str, Callable[[OpView], float]] = {
    "matmul": _matmul,
    "convolution": _convolution,
    "attention": _attention,
    "normalization": _normalization,
    "softmax": _per_input_element,
    "reduction": _per_input_element,
    "pointwise": _pointwise,
    "gather": _output_elements,
    "scatter": _scatter,
    "pooling": _pooling,
    "copy": _copy,
    "factory": lambda view: 0.0,
    "sort": _sort,
    "random": lambda view: _RANDOM * _output_elements(view),
}
