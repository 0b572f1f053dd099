"""Convolutions, forward and with respect to their inputs.

Place: a family of the lowering table. One, two and three spatial dimensions, grouped, dilated, transposed.
Non-goals: the gradient with respect to the weight, for which runtimes have no kernel of their own.
"""

from __future__ import annotations

from mixbackend.backends.common.onnx.builder import Value
from mixbackend.backends.common.onnx.call import Call
from mixbackend.backends.common.onnx.conditions import literal
from mixbackend.backends.common.onnx.dtypes import SINGLES
from mixbackend.backends.common.onnx.table import lowers
from mixbackend.contracts import OpRule, OpView, Unsupported, is_symbolic


def spatial(call: Call, name: str, count: int) -> list[int]:
    """A per-dimension argument."""
    listed = [int(item) for item in call.argument(name)]
    assert len(listed) == count, f"{name} has {len(listed)} numbers for {count} dimensions"
    return listed


def _batched(view: OpView) -> Unsupported | None:
    image, weight = view.tensor("input"), view.tensor("weight")
    assert image is not None and weight is not None
    if image.rank != weight.rank or not 3 <= image.rank <= 5:
        return Unsupported("rank", f"image of rank {image.rank} with weight of rank {weight.rank}")
    if any(is_symbolic(size) for size in weight.shape[2:]):
        return Unsupported("dynamic-shape", f"weight has symbolic sizes: {weight}")
    return None


def _covered_padding(view: OpView) -> Unsupported | None:
    """ONNX leaves an output padding of a whole stride or more undefined."""
    if not view.argument("transposed"):
        return None
    padding, stride = view.argument("output_padding"), view.argument("stride")
    assert isinstance(padding, tuple) and isinstance(stride, tuple)
    extras, steps = ([int(item) for item in listed] for listed in (padding, stride))  # type: ignore[arg-type]
    if all(extra < steps[min(axis, len(steps) - 1)] for axis, extra in enumerate(extras)):
        return None
    return Unsupported("argument", f"output_padding={padding} with stride={stride}")


_GEOMETRY = literal("stride", "padding", "dilation", "output_padding", "groups")


@lowers("convolution", OpRule(dtypes=SINGLES, arguments=(_GEOMETRY, _batched, _covered_padding)))
def _convolution(call: Call) -> Value:
    image, weight = call.tensor("input"), call.tensor("weight")
    count = image.rank - 2
    padding = spatial(call, "padding", count)
    shared = {
        "strides": spatial(call, "stride", count),
        "pads": padding + padding,
        "dilations": spatial(call, "dilation", count),
        "group": call.integer("groups"),
        "kernel_shape": [int(size) for size in weight.sizes[2:]],  # type: ignore[arg-type]
    }
    bias = call.optional("bias")
    if not call.argument("transposed"):
        return call.op("Conv", image, weight, bias, **shared)
    extra = spatial(call, "output_padding", count)
    return call.op("ConvTranspose", image, weight, bias, output_padding=extra, **shared)
