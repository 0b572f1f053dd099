"""Scaled dot-product attention as torch's kernels define it, those of the CPU and those of NVIDIA GPUs.

Place: a family of the lowering table. Written as one ``Attention`` for targets that have it, else as products and a
softmax. Between ``(batch, length, heads, width)`` in memory, which models have around it, and the operator nothing is
turned: it takes rows of all heads.
"""

from __future__ import annotations

import math

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import literal
from mixbackend.backends.common.onnx.dtypes import REALS
from mixbackend.backends.common.onnx.errors import LoweringError
from mixbackend.backends.common.onnx.softmax import softmax_of_masked
from mixbackend.backends.common.onnx.table import lowers
from mixbackend.contracts import OpRule, OpView, Unsupported, is_symbolic


def _no_dropout(view: OpView) -> Unsupported | None:
    probability = view.argument("dropout_p")
    return None if probability == 0 else Unsupported("random", f"dropout_p={probability}")


def _known_width(view: OpView) -> Unsupported | None:
    meta = view.tensor("query")
    if meta is None or is_symbolic(meta.shape[-1]):
        return Unsupported("dynamic-shape", f"head size of {meta}")
    return None


def _true_statistics(view: OpView) -> Unsupported | None:
    """Torch 2.11 announces the logarithms of a float64 call as float32, but its kernel gives and wants float64."""
    result, *statistics = view.output_tensors
    if result.dtype is torch.float64 and any(meta.dtype is not torch.float64 for meta in statistics):
        return Unsupported("dtype", f"announced as {result} with {statistics[0]}, which is not what torch gives")
    return None


_RULE = OpRule(
    dtypes=REALS | {torch.bool},
    ranks=(0, 4),
    arguments=(_no_dropout, _known_width, _true_statistics, literal("scale", "is_causal")),
)


def _scale(call: Call) -> float:
    given = call.argument("scale")
    width = int(call.tensor("query").sizes[-1])  # type: ignore[arg-type]
    return 1.0 / math.sqrt(width) if given is None else float(given)


def _scores(call: Call, query: Value, key: Value) -> Value:
    """Scaled and masked products of queries and keys."""
    factor = call.build.constant(_scale(call), query.dtype)
    scores = call.op("Mul", call.op("MatMul", query, call.op("Transpose", key, perm=[0, 1, 3, 2])), factor)
    return _hidden(call, scores, "attn_mask")


def _hidden(call: Call, scores: Value, mask: str) -> Value:
    """Scores without those that the mask of this name, or causality, hides."""
    if call.has(mask):
        scores = _masked(call, scores, call.tensor(mask))
    if call.argument("is_causal"):
        scores = _causal(call, scores)
    return scores


def _masked(call: Call, scores: Value, mask: Value) -> Value:
    if mask.dtype is torch.bool:
        return call.op("Where", mask, scores, call.build.constant(float("-inf"), scores.dtype))
    return call.op("Add", scores, call.build.cast(mask, scores.dtype))


def _causal(call: Call, scores: Value) -> Value:
    rows = call.build.size(call.tensor("query"), 2)
    columns = call.build.size(call.tensor("key"), 2)
    every = call.build.filled(call.op("Concat", rows, columns, axis=0), 1, torch.int64)
    lower = call.build.cast(call.op("Trilu", every, upper=0), torch.bool)
    return call.op("Where", lower, scores, call.build.constant(float("-inf"), scores.dtype))


@lowers("_scaled_dot_product_flash_attention_for_cpu", _RULE)
def _attention(call: Call) -> tuple[Value | None, ...]:
    if call.build.target.attention and 1 not in call.used and call.out.dtype is not torch.float64:
        return _whole_attention(call), None
    dtype = _compute_type(call)
    query, key, value = (call.operand(name, dtype) for name in ("query", "key", "value"))
    scores = _scores(call, query, key)
    masked = call.has("attn_mask")
    weights = softmax_of_masked(call, scores, 3) if masked else call.op("Softmax", scores, axis=3)
    result = call.build.cast(call.op("MatMul", weights, value), call.output(0).dtype)
    if 1 not in call.used:
        return result, None
    best = call.op("ReduceMax", scores, call.build.integers([3]), keepdims=1)
    total = call.op("ReduceSum", call.op("Exp", call.op("Sub", scores, best)), call.build.integers([3]), keepdims=0)
    best = call.op("Squeeze", best, call.build.integers([3]))
    return result, call.build.cast(call.op("Add", call.op("Log", total), best), call.output(1).dtype)


def _equal_heads(view: OpView) -> Unsupported | None:
    query, key = view.tensor("query"), view.tensor("key")
    if query is None or key is None or query.shape[1] == key.shape[1]:
        return None
    return Unsupported("argument", f"{query} and {key} differ in heads")


def _inference(view: OpView) -> Unsupported | None:
    """The backward needs what its own forward kernel leaves."""
    return None if view.phase == "inference" else Unsupported("phase", f"attention in the {view.phase}")


_GPU_RULE = OpRule(
    # Statistics and the state of the random stream come out as well; they are not read in inference.
    dtypes=REALS | {torch.bool, torch.int64, torch.uint64},
    ranks=(0, 4),
    arguments=(_no_dropout, _known_width, _equal_heads, _inference, literal("scale", "is_causal")),
)
_GPU_KERNELS = " ".join(f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn"))


@lowers(_GPU_KERNELS, _GPU_RULE)
def _gpu_attention(call: Call) -> tuple[Value | None, ...]:
    """The result alone. Queries are scaled before the product, which may leave the range of float16 without."""
    if call.used - {0}:
        raise LoweringError(f"{call.view.op}: its statistics are read, and only its result is written")
    dtype = call.out.dtype if call.build.target.half_formulas else _compute_type(call)
    query, key, value = (call.operand(name, dtype) for name in ("query", "key", "value"))
    scaled = call.op("Mul", query, call.build.constant(_scale(call), dtype))
    scores = _hidden(call, call.op("MatMul", scaled, _swapped(call, key)), "attn_bias")
    weights = softmax_of_masked(call, scores, 3) if call.has("attn_bias") else call.op("Softmax", scores, axis=3)
    result = call.build.cast(call.op("MatMul", weights, value), call.output(0).dtype)
    return (result, *([None] * (len(call.view.outputs) - 1)))


_TURNED = [0, 2, 1, 3]
_LOWEST = torch.finfo(torch.float32).min
_NEXT_TO_LOWEST = torch.nextafter(torch.tensor(_LOWEST), torch.tensor(0.0)).item()


def _whole_attention(call: Call) -> Value:
    """The operator on rows of all heads where query, key and value are turned from such, else on heads as they are."""
    build, parts = call.build, [call.tensor(name) for name in ("query", "key", "value")]
    mask = _whole_mask(call) if call.has("attn_mask") else None
    shared = {"scale": _scale(call), "is_causal": 1 if call.argument("is_causal") else None}
    before = [build.before(part, "Transpose", perm=_TURNED) for part in parts]
    heads = [part.sizes[1] for part in parts]
    if any(part is None for part in before) or any(is_symbolic(count) for count in heads):
        wide = [build.cast(part, torch.float32) for part in parts]
        return build.cast(call.op("Attention", *wide, mask, **shared), call.out.dtype)
    together = build.integers([0, 0, -1])
    rows = [call.op("Reshape", build.cast(part, torch.float32), together) for part in before if part is not None]
    counts = {"q_num_heads": int(heads[0]), "kv_num_heads": int(heads[1])}  # type: ignore[arg-type]
    result = build.cast(call.op("Attention", *rows, mask, **shared, **counts), call.out.dtype)
    apart = build.integers([0, 0, int(heads[0]), -1])  # type: ignore[arg-type]
    return call.op("Transpose", call.op("Reshape", result, apart), perm=_TURNED)


def _above_lowest(call: Call, mask: Value) -> Value:
    """To ONNX Runtime's operator the lowest number is minus infinity: a row of nothing else would become zeros."""
    lowest, above = (call.build.constant(number, torch.float32) for number in (_LOWEST, _NEXT_TO_LOWEST))
    return call.op("Where", call.op("Equal", mask, lowest), above, mask)


def _whole_mask(call: Call) -> Value:
    """The mask as a float one over all queries and keys: the operator spreads it over batch and heads alone."""
    mask = call.tensor("attn_mask")
    sizes = mask.sizes
    if mask.dtype is torch.bool:
        nothing = [call.build.constant(number, torch.float32) for number in (0.0, float("-inf"))]
        mask = call.op("Where", mask, *nothing)
    else:
        mask = _above_lowest(call, call.build.cast(mask, torch.float32))
    wanted = (call.tensor("query").sizes[2], call.tensor("key").sizes[2])
    if sizes[-2:] == wanted:
        return mask
    lengths = [call.build.size(call.tensor(name), 2) for name in ("query", "key")]
    return call.op("Expand", mask, call.op("Concat", *lengths, axis=0))


def _compute_type(call: Call) -> torch.dtype:
    return torch.float64 if call.out.dtype is torch.float64 else torch.float32


@lowers("_scaled_dot_product_flash_attention_for_cpu_backward", _RULE)
def _attention_backward(call: Call) -> tuple[Value | None, ...]:
    dtype = _compute_type(call)
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    grad, query, key, value, out, total = (call.operand(name, dtype) for name in names)
    last = call.build.integers([3])
    scores = _scores(call, query, key)
    weights = call.op("Exp", call.op("Sub", scores, call.op("Unsqueeze", total, last)))
    grad_weights = call.op("MatMul", grad, _swapped(call, value))
    correction = call.op("ReduceSum", call.op("Mul", grad, out), last, keepdims=1)
    grad_scores = call.op("Mul", weights, call.op("Sub", grad_weights, correction))
    grad_scores = call.op("Mul", grad_scores, call.build.constant(_scale(call), dtype))
    results = (
        call.op("MatMul", grad_scores, key),
        call.op("MatMul", _swapped(call, grad_scores), query),
        call.op("MatMul", _swapped(call, weights), grad),
    )
    return tuple(call.build.cast(item, call.output(index).dtype) for index, item in enumerate(results))


def _swapped(call: Call, value: Value) -> Value:
    return call.op("Transpose", value, perm=[0, 1, 3, 2])
