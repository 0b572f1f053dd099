"""Pooling and resampling.

Place: a family of the lowering table. Windows that torch and ONNX would round differently are refused or written with
explicit padding.
"""

from __future__ import annotations

import math

import torch

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import literal, static_from, type_of
from mixbackend.backends.common.onnx.dtypes import REALS, SINGLES
from mixbackend.backends.common.onnx.table import lowers
from mixbackend.contracts import OpRule, OpView, Size, TensorMeta, Unsupported

_LITERALS = literal("kernel_size", "stride", "padding", "dilation", "ceil_mode", "divisor_override")


def _pair(value: object) -> tuple[int, int]:
    assert isinstance(value, tuple) and len(value) == 2, f"{value} for two dimensions"
    return int(value[0]), int(value[1])


class Window:
    """The geometry of a two-dimensional pooling call."""

    def __init__(self, view: OpView, image: TensorMeta, result: TensorMeta) -> None:
        self.kernel = _pair(view.argument("kernel_size"))
        self.stride = _pair(view.argument("stride"))
        self.padding = _pair(view.argument("padding"))
        self.dilation = _pair(view.argument("dilation")) if view.has_argument("dilation") else (1, 1)
        self.image = tuple(int(size) for size in image.shape[-2:])  # type: ignore[arg-type]
        self.result = tuple(int(size) for size in result.shape[-2:])  # type: ignore[arg-type]

    def after(self) -> list[int]:
        """Padding at the end that makes the windows come out as torch counts them."""
        return [max(self._needed(axis), self.padding[axis]) for axis in (0, 1)]

    def overhangs(self) -> bool:
        """Whether a window reaches beyond the symmetric padding, as ``ceil_mode`` allows."""
        return any(self._needed(axis) > self.padding[axis] for axis in (0, 1))

    def _needed(self, axis: int) -> int:
        reach = (self.result[axis] - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return reach - self.image[axis] - self.padding[axis]


def _batched(view: OpView) -> Unsupported | None:
    ranks = {meta.rank for meta in view.input_tensors}
    return None if ranks == {4} else Unsupported("rank", f"ranks {sorted(ranks)}, needed 4")


_IMAGE = static_from("self", 2)


@lowers(
    "max_pool2d_with_indices",
    OpRule(dtypes=REALS | {torch.int64}, arguments=(type_of("self", REALS), _LITERALS, _batched, _IMAGE)),
)
def _max_pool(call: Call) -> tuple[Value | None, ...]:
    value = call.tensor("self")
    window = Window(call.view, call.view.tensor("self"), call.out)  # type: ignore[arg-type]
    wanted = 2 if 1 in call.used else 1
    results = call.build.node(
        "MaxPool",
        (value,),
        wanted,
        kernel_shape=list(window.kernel),
        strides=list(window.stride),
        pads=[*window.padding, *window.after()],
        dilations=list(window.dilation),
    )
    if wanted == 1:
        return results[0], None
    # ONNX counts through the whole tensor, torch inside one plane.
    plane = call.build.constant(window.image[0] * window.image[1], torch.int64)
    return results[0], call.op("Mod", results[1], plane)


@lowers(
    "max_pool2d_with_indices_backward",
    OpRule(dtypes=REALS | {torch.int64}, arguments=(type_of("self", REALS), _LITERALS, _batched, _IMAGE)),
)
def _max_pool_backward(call: Call) -> Value:
    grad, source = call.tensor("grad_output"), call.tensor("self")
    window = Window(call.view, call.out, call.view.tensor("grad_output"))  # type: ignore[arg-type]
    plane, cells = window.image[0] * window.image[1], window.result[0] * window.result[1]
    flat = call.op("Concat", call.op("Shape", source, end=2), call.build.integers([plane]), axis=0)
    zeros = call.build.filled(flat, 0, grad.dtype)
    updates = call.reshape(grad, [*_leading(call), cells])
    indices = call.reshape(call.tensor("indices"), [*_leading(call), cells])
    result = call.op("ScatterElements", zeros, indices, updates, axis=2, reduction="add")
    return call.op("Reshape", result, call.build.shape(source))


def _leading(call: Call) -> list[int]:
    """(batch, channels) for a reshape; a symbolic batch is left to be inferred."""
    return [size if isinstance(size, int) else -1 for size in call.out.shape[:2]]


def _plain_average(view: OpView) -> Unsupported | None:
    if view.argument("divisor_override") is not None:
        return Unsupported("argument", "divisor_override")
    image = view.tensor("self")
    small = view.tensor("grad_output") if view.has_argument("grad_output") else view.output_tensors[0]
    assert image is not None and small is not None
    if Window(view, image, small).overhangs():
        return Unsupported("argument", "ceil_mode adds windows that reach beyond the padding")
    return None


@lowers("avg_pool2d", OpRule(dtypes=SINGLES, arguments=(_LITERALS, _batched, _IMAGE, _plain_average)))
def _avg_pool(call: Call) -> Value:
    window = Window(call.view, call.view.tensor("self"), call.out)  # type: ignore[arg-type]
    return call.op(
        "AveragePool",
        call.tensor("self"),
        kernel_shape=list(window.kernel),
        strides=list(window.stride),
        pads=[*window.padding, *window.padding],
        count_include_pad=int(bool(call.argument("count_include_pad"))),
    )


def _constant_divisor(view: OpView) -> Unsupported | None:
    if view.argument("count_include_pad") or _pair(view.argument("padding")) == (0, 0):
        return None
    return Unsupported("argument", "count_include_pad=False with padding")


@lowers(
    "avg_pool2d_backward",
    OpRule(dtypes=SINGLES, arguments=(_LITERALS, _batched, _IMAGE, _plain_average, _constant_divisor)),
)
def _avg_pool_backward(call: Call) -> Value:
    grad = call.operand("grad_output", torch.float32)
    window = Window(call.view, call.out, call.view.tensor("grad_output"))  # type: ignore[arg-type]
    area = window.kernel[0] * window.kernel[1]
    planes = call.reshape(grad, [-1, 1, *window.result])
    kernel = call.build.constant(torch.full((1, 1, *window.kernel), 1.0 / area), torch.float32)
    extra = [
        size - ((small - 1) * stride - 2 * pad + width)
        for size, small, stride, pad, width in zip(
            window.image, window.result, window.stride, window.padding, window.kernel, strict=True
        )
    ]
    # Less is cropped at the end where no window reached the last rows; what is still missing is zero.
    cropped = [max(pad - rest, 0) for pad, rest in zip(window.padding, extra, strict=True)]
    missing = [max(rest - pad, 0) for pad, rest in zip(window.padding, extra, strict=True)]
    spread = call.op("ConvTranspose", planes, kernel, strides=list(window.stride), pads=[*window.padding, *cropped])
    if any(missing):
        zero = call.build.constant(0.0, torch.float32)
        spread = call.op("Pad", spread, call.build.integers([0] * 6 + missing), zero)
    return call.build.cast(call.op("Reshape", spread, call.build.shape(call.tensor("self"))), call.out.dtype)


# --- adaptive --------------------------------------------------------------------------------------------------------


def _averages(size: int, result: int, dtype: torch.dtype) -> torch.Tensor:
    """Matrix (result, size) with rows that average torch's adaptive windows."""
    matrix = torch.zeros(result, size, dtype=torch.float64)
    for row in range(result):
        start, end = row * size // result, math.ceil((row + 1) * size / result)
        matrix[row, start:end] = 1.0 / (end - start)
    return matrix.to(dtype)


_ADAPTIVE = OpRule(dtypes=REALS, ranks=(3, 4), arguments=(_IMAGE, literal("output_size")))


@lowers("_adaptive_avg_pool2d", _ADAPTIVE)
def _adaptive(call: Call) -> Value:
    value = call.tensor("self")
    rank = value.rank
    if tuple(call.out.shape[-2:]) == (1, 1):
        return call.op("ReduceMean", value, call.build.integers([rank - 2, rank - 1]), keepdims=1)
    rows, columns = _matrices(call, call.tensor("self").sizes, call.out.shape)
    wide = call.build.cast(value, rows.dtype)
    return call.build.cast(
        call.op("MatMul", call.op("MatMul", rows, wide), call.op("Transpose", columns, perm=[1, 0])), call.out.dtype
    )


@lowers("_adaptive_avg_pool2d_backward", _ADAPTIVE)
def _adaptive_backward(call: Call) -> Value:
    grad = call.tensor("grad_output")
    rows, columns = _matrices(call, call.out.shape, grad.sizes)
    wide = call.build.cast(grad, rows.dtype)
    spread = call.op("MatMul", call.op("MatMul", call.op("Transpose", rows, perm=[1, 0]), wide), columns)
    return call.build.cast(spread, call.out.dtype)


def _matrices(call: Call, image: tuple[Size, ...], result: tuple[Size, ...]) -> tuple[Value, Value]:
    dtype = torch.float64 if call.out.dtype is torch.float64 else torch.float32
    pairs = zip(image[-2:], result[-2:], strict=True)
    rows, columns = (_averages(int(size), int(small), dtype) for size, small in pairs)  # type: ignore[arg-type]
    return call.build.constant(rows, dtype), call.build.constant(columns, dtype)
