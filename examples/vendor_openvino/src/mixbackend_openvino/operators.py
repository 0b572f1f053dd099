"""How OpenVINO builds the operators that need more than one line.

Every function takes a ``Call`` and returns an OpenVINO node, or a list with one entry per output (``None`` where the
output is not built). ``call["self"]`` is the argument with that schema name: an OpenVINO value for a tensor or for a
number known only at run time, else a plain Python value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from mixbackend.contracts import OpView


class _Opset:
    # Operators by name; OpenVINO is loaded when the first is built, not when an op is judged by the table.
    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **options: getattr(import_module("openvino.opset15"), name)(*arguments, **options)


ov: Any = _Opset()


@dataclass(frozen=True)
class Call:
    """One op of a region while it is built."""

    view: OpView
    arguments: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def shape(self, name: str = "self") -> Sequence[Any]:
        """Shape of a tensor argument."""
        meta = self.view.tensor(name)
        assert meta is not None
        return meta.shape


def vector(sizes: Sequence[Any]) -> Any:
    """Sizes, some of which are known only at run time, as one int64 vector."""
    if all(isinstance(size, int) for size in sizes):
        return ov.constant(np.array(sizes, dtype=np.int64))
    parts = [ov.constant(np.array([s], np.int64)) if isinstance(s, int) else ov.reshape(s, [1], False) for s in sizes]
    return ov.concat(parts, 0)


def scalar(value: Any) -> Any:
    """A tensor as it is, a Python number as float32."""
    return ov.constant(np.float32(value)) if isinstance(value, (bool, int, float)) else value


def spread(value: Sequence[int], rank: int) -> list[int]:
    """One number per spatial dimension."""
    return list(value) * rank if len(value) == 1 else list(value)


def product(left: Any, right: Any) -> Any:
    """A matrix product; a matrix that was turned is read as it was before."""
    node = right.get_node() if hasattr(right, "get_node") else right
    turned = node.get_type_name() == "Transpose" and len(node.get_output_partial_shape(0)) == 2
    return ov.matmul(left, node.input_value(0) if turned else right, False, turned)


def addmm(call: Call) -> Any:
    return ov.add(product(call["mat1"], call["mat2"]), call["self"])


def convolution(call: Call) -> Any:
    weight, groups, rank = call["weight"], call["groups"], len(call.shape("input")) - 2
    stride, padding, dilation = (spread(call[name], rank) for name in ("stride", "padding", "dilation"))
    if groups == 1:
        result = ov.convolution(call["input"], weight, stride, padding, padding, dilation)
    else:
        first, *rest = call.shape("weight")
        weight = ov.reshape(weight, vector([groups, first // groups, *rest]), False)
        result = ov.group_convolution(call["input"], weight, stride, padding, padding, dilation)
    if call["bias"] is None:
        return result
    return ov.add(result, ov.reshape(call["bias"], vector([1, -1] + [1] * rank), False))


def layer_norm(call: Call) -> Any:
    rank = len(call.shape("input"))
    axes = vector(range(rank - len(call["normalized_shape"]), rank))
    result = ov.mvn(call["input"], axes, True, call["eps"], "inside_sqrt")
    result = result if call["weight"] is None else ov.multiply(result, call["weight"])
    result = result if call["bias"] is None else ov.add(result, call["bias"])
    mean = ov.reduce_mean(call["input"], axes, True)
    centered = ov.subtract(call["input"], mean)
    variance = ov.reduce_mean(ov.multiply(centered, centered), axes, True)
    return [result, mean, ov.divide(scalar(1.0), ov.sqrt(ov.add(variance, scalar(call["eps"]))))]


def batch_norm(call: Call) -> Any:
    statistics = [call[name] for name in ("weight", "bias", "running_mean", "running_var")]
    return [ov.batch_norm_inference(call["input"], *statistics, call["eps"]), None, None]


def attention(call: Call) -> Any:
    query, key, value, mask = (call[name] for name in ("query", "key", "value", "attn_mask"))
    scale = None if call["scale"] is None else scalar(call["scale"])
    return [ov.scaled_dot_product_attention(query, key, value, mask, scale, call["is_causal"]), None]


def pad(call: Call) -> Any:
    # Stated from the last dimension on, as pairs of what goes before and behind; negative ones cut off.
    missing = [0] * (len(call.shape()) - len(call["pad"]) // 2)
    before, behind = ([*missing, *call["pad"][start::2][::-1]] for start in (0, 1))
    return ov.pad(call["self"], vector(before), vector(behind), "constant", scalar(call["value"]))


def max_pool(call: Call) -> Any:
    kernel, padding, dilation = (spread(call[name], 2) for name in ("kernel_size", "padding", "dilation"))
    stride = spread(call["stride"], 2) or kernel
    # Axis 2: torch counts indices over height and width of one channel.
    return ov.max_pool(
        call["self"], stride, dilation, padding, padding, kernel, index_element_type="i64", axis=2
    ).outputs()


def average_pool(call: Call) -> Any:
    kernel, padding = spread(call["kernel_size"], 2), spread(call["padding"], 2)
    stride = spread(call["stride"], 2) or kernel
    return ov.avg_pool(call["self"], stride, padding, padding, kernel, not call["count_include_pad"])


def expand(call: Call) -> Any:
    wanted = [1 if isinstance(size, int) and size == -1 else size for size in call["size"]]
    return ov.broadcast(call["self"], vector(wanted), broadcast_spec="BIDIRECTIONAL")


def slice_(call: Call) -> Any:
    start = 0 if call["start"] is None else call["start"]
    stop = 2**31 - 1 if call["end"] is None else call["end"]
    stop = min(stop, 2**31 - 1) if isinstance(stop, int) else stop
    return ov.slice(call["self"], *[vector([item]) for item in (start, stop, call["step"], call["dim"])])


def split(call: Call) -> Any:
    lengths = vector([meta.shape[call["dim"]] for meta in call.view.output_tensors])
    return ov.variadic_split(call["self"], scalar_index(call["dim"]), lengths).outputs()


def unbind(call: Call) -> Any:
    axis, count = scalar_index(call["dim"]), call.shape()[call["dim"]]
    return [ov.squeeze(part, axis) for part in ov.split(call["self"], axis, count).outputs()]


def scalar_index(value: int) -> Any:
    return ov.constant(np.int64(value))


def transpose(call: Call) -> Any:
    order = list(range(len(call.shape())))
    first, second = call["dim0"], call["dim1"]
    order[first], order[second] = order[second], order[first]
    return ov.transpose(call["self"], vector(order))


def same(call: Call) -> Any:
    # Not the value itself: a parameter that is a result as well is not written into the output tensor that is set.
    return ov.reshape(call["self"], vector([0] * len(call.shape())), True)


def clamp(call: Call) -> Any:
    low = call["min"] if "min" in call.arguments else call["min_val"]
    high = call["max"] if "max" in call.arguments else call["max_val"]
    value = call["self"] if low is None else ov.maximum(call["self"], scalar(low))
    return value if high is None else ov.minimum(value, scalar(high))


def reduction(function: Any) -> Any:
    def build(call: Call) -> Any:
        # Torch names a dimension of a single number, which OpenVINO does not have.
        axes = (call["dim"] or range(len(call.shape()))) if call.shape() else ()
        return function(call["self"], vector(list(axes)), call["keepdim"])

    return build
