"""The operators that OpenVINO takes, one row each: when it takes them, and how they are built.

Only float32 and bfloat16 are computed with: the CPU plug-in narrows others to 32 bits. Bool values, indices pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mixbackend.contracts import OpRule, OpView, SupportTable, Unsupported, one_of
from mixbackend_openvino import operators as build
from mixbackend_openvino.calling import FLOATS
from mixbackend_openvino.operators import Call, ov, scalar, scalar_index, vector

BOOL = frozenset({torch.bool})
Test = Callable[[OpView], "Unsupported | None"]


def plain(*arguments: str) -> Test:
    """These arguments are tensors, or numbers known now."""

    def test(view: OpView) -> Unsupported | None:
        numbers = {item.name for item in view.inputs if not hasattr(item.meta, "rank")}
        runtime = [name for name in arguments if getattr(view.argument(name), "name", None) in numbers]
        return Unsupported("argument", f"{runtime[0]} is a number known only at run time") if runtime else None

    return test


def float_inputs(view: OpView) -> Unsupported | None:
    wrong = [meta for meta in view.input_tensors if meta.dtype not in FLOATS]
    return Unsupported("dtype", f"input {wrong[0]}, needed a floating-point type") if wrong else None


def inference(view: OpView) -> Unsupported | None:
    return None if view.phase == "inference" else Unsupported("phase", "what the backward needs is not built")


def attends(view: OpView) -> Unsupported | None:
    heads = {meta.shape[1] for name in ("query", "key") if (meta := view.tensor(name)) is not None}
    return inference(view) or (None if len(heads) == 1 else Unsupported("argument", f"tensors of {heads} heads"))


def known_sizes(*arguments: str) -> Test:
    def test(view: OpView) -> Unsupported | None:
        metas = [view.tensor(name) for name in arguments]
        dynamic = [meta for meta in metas if meta is not None and meta.dynamic]
        return Unsupported("dynamic-shape", f"{dynamic[0]} has sizes known only at run time") if dynamic else None

    return test


def given(*arguments: str) -> Test:
    def test(view: OpView) -> Unsupported | None:
        missing = [name for name in arguments if view.argument(name) in (None, ())]
        return Unsupported("argument", f"{missing[0]} is missing") if missing else None

    return test


Row = tuple[Callable[[Call], Any], OpRule]


def row(function: Callable[[Call], Any], *tests: Test, dtypes: frozenset[torch.dtype] = FLOATS, **more: Any) -> Row:
    return function, OpRule(dtypes=dtypes, arguments=tests, **more)


def unary(function: Any, *tests: Test, dtypes: frozenset[torch.dtype] = FLOATS) -> Row:
    return row(lambda call: function(call["self"]), *tests, dtypes=dtypes)


def binary(function: Any, *tests: Test, dtypes: frozenset[torch.dtype] = FLOATS) -> Row:
    operands = lambda call: [scalar(call["self"]), scalar(call["other"])]  # noqa: E731
    return row(lambda call: function(*operands(call)), plain("other"), *tests, dtypes=dtypes)


def compare(function: Any) -> Row:
    return binary(function, float_inputs, dtypes=FLOATS | BOOL)


def moved(function: Callable[[Call], Any], *tests: Test) -> Row:
    return row(function, *tests, dtypes=FLOATS | BOOL)


NO_ALPHA = one_of("alpha", 1, 1.0)
INDEX = FLOATS | {torch.int64, torch.int32}

_UNARY = {
    "relu": ov.relu, "sigmoid": ov.sigmoid, "tanh": ov.tanh, "exp": ov.exp, "sqrt": ov.sqrt, "neg": ov.negative,
    "abs": ov.abs, "erf": ov.erf, "sin": ov.sin, "cos": ov.cos, "silu": ov.swish, "hardswish": ov.hswish,
    "hardsigmoid": lambda x: ov.hard_sigmoid(x, scalar(1 / 6), scalar(0.5)), "reciprocal": lambda x: scalar(1.0) / x,
    "rsqrt": lambda x: scalar(1.0) / ov.sqrt(x),
}  # fmt: skip
_BINARY = {"add": (ov.add, NO_ALPHA), "sub": (ov.subtract, NO_ALPHA), "mul": (ov.multiply,), "div": (ov.divide,)}
_COMPARISONS = {
    "eq": ov.equal, "ne": ov.not_equal, "lt": ov.less, "le": ov.less_equal, "gt": ov.greater, "ge": ov.greater_equal,
}  # fmt: skip
_REDUCTIONS = {
    "mean.dim": ov.reduce_mean, "sum.dim_IntList": ov.reduce_sum, "amax.default": ov.reduce_max,
    "amin.default": ov.reduce_min,
}  # fmt: skip

ROWS: dict[str, Row] = {
    **{f"aten.{name}.default": unary(function) for name, function in _UNARY.items()},
    **{f"aten.{name}.Tensor": binary(*rest) for name, rest in _BINARY.items()},
    **{f"aten.{name}.{kind}": compare(item) for name, item in _COMPARISONS.items() for kind in ("Tensor", "Scalar")},
    **{f"aten.{name}": row(build.reduction(item), float_inputs) for name, item in _REDUCTIONS.items()},
    "aten.gelu.default": row(lambda c: ov.gelu(c["self"], {"none": "erf"}.get(c["approximate"], c["approximate"]))),
    "aten.maximum.default": binary(ov.maximum),
    "aten.minimum.default": binary(ov.minimum),
    "aten.pow.Tensor_Scalar": row(lambda c: ov.power(c["self"], scalar(c["exponent"])), plain("exponent")),
    "aten.leaky_relu.default": row(lambda c: ov.prelu(c["self"], scalar(c["negative_slope"]))),
    "aten.clamp.default": row(build.clamp, plain("min", "max")),
    "aten.hardtanh.default": row(build.clamp),
    "aten.logical_not.default": unary(ov.logical_not, dtypes=BOOL),
    "aten.logical_and.default": binary(ov.logical_and, dtypes=BOOL),
    "aten.where.self": row(lambda c: ov.select(c["condition"], c["self"], c["other"]), dtypes=FLOATS | BOOL),
    "aten.mm.default": row(lambda c: build.product(c["self"], c["mat2"])),
    "aten.bmm.default": row(lambda c: ov.matmul(c["self"], c["mat2"], False, False)),
    "aten.addmm.default": row(build.addmm, one_of("beta", 1), one_of("alpha", 1)),
    "aten.convolution.default": row(build.convolution, one_of("transposed", False), known_sizes("weight")),
    "aten.native_layer_norm.default": row(build.layer_norm),
    "aten._native_batch_norm_legit_no_training.default": row(build.batch_norm, inference, given("weight", "bias")),
    "aten._softmax.default": row(lambda c: ov.softmax(c["self"], c["dim"]), one_of("half_to_float", False)),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": row(build.attention, attends, one_of("dropout_p", 0)),
    "aten.max_pool2d_with_indices.default": row(build.max_pool, one_of("ceil_mode", False), dtypes=INDEX, ranks=(4, 4)),
    "aten.avg_pool2d.default": row(build.average_pool, one_of("ceil_mode", False), one_of("divisor_override", None)),
    "aten.embedding.default": row(lambda c: ov.gather(c["weight"], c["indices"], scalar_index(0)), dtypes=INDEX),
    "aten.reshape.default": moved(lambda c: ov.reshape(c["self"], vector(c["shape"]), False)),
    "aten.permute.default": moved(lambda c: ov.transpose(c["self"], vector([d % len(c["dims"]) for d in c["dims"]]))),
    "aten.t.default": moved(lambda c: ov.transpose(c["self"], vector(range(len(c.shape()))[::-1]))),
    "aten.transpose.int": moved(build.transpose),
    "aten.unsqueeze.default": moved(lambda c: ov.unsqueeze(c["self"], vector([c["dim"]]))),
    "aten.expand.default": moved(build.expand),
    "aten.slice.Tensor": moved(build.slice_),
    "aten.select.int": moved(lambda c: ov.gather(c["self"], c["index"], scalar_index(c["dim"])), plain("index")),
    "aten.split.Tensor": moved(build.split, known_sizes("self")),
    "aten.split_with_sizes.default": moved(build.split, known_sizes("self")),
    "aten.unbind.int": moved(build.unbind, known_sizes("self")),
    "aten.constant_pad_nd.default": row(build.pad, plain("value")),
    "aten.roll.default": moved(lambda c: ov.roll(c["self"], vector(c["shifts"]), vector(c["dims"])), given("dims")),
    "aten.cat.default": moved(lambda c: ov.concat(list(c["tensors"]), c["dim"])),
    "aten.clone.default": moved(build.same),
    "aten.detach.default": moved(build.same),
    "aten.alias.default": moved(build.same),
}

TABLE = SupportTable({name: rule for name, (_, rule) in ROWS.items()})
