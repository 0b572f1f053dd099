"""Convolutions: text of their calls, with what follows them.

Place: rules of ``library``. The kernels follow torch's layouts: channels-last results for channels-last images or
weights, else row-major ones; a packed weight makes every result channels-last.
Constant weights are packed when a region is bound, but for row-major images if the result must be row-major: turning it
back costs more than the packed weight gains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.backends.common.library import Scope
from mixbackend.backends.onednn.kernels import (
    NO_ACTIVATION,
    convolution,
    convolution_binary,
    convolution_transpose,
    pack_convolution,
)
from mixbackend.backends.onednn.products import row_text
from mixbackend.contracts import SymbolicSize, TensorMeta, hint_of
from mixbackend.contracts.describe_op import describe_op

Node = torch.fx.Node

_PACKED_RANKS = (4, 5)


def write_convolution(
    scope: Scope,
    node: Node,
    activation: tuple[str, Sequence[Any], str] | None = None,
    result: Node | None = None,
) -> str:
    """One call for a ``convolution``, transposed or not.

    Args:
        result: node of the match's result if it is another one.
    """
    name, scalars, algorithm = activation or (NO_ACTIVATION, (), "")
    image, weight, bias, shape = _parts(scope, node, result or node)
    tail = f"{name!r}, {scope.text(list(scalars))}, {algorithm!r}"
    if node.args[6]:
        padding, spread, *others = shape[0], scope.text(node.args[7]), *shape[1:]
        call = scope.object(convolution_transpose(), "convolution_transpose")
        return f"{call}({image}, {weight}, {bias}, {padding}, {spread}, {', '.join(others)}, {tail})"
    call = scope.object(convolution(), "convolution")
    return f"{call}({image}, {weight}, {bias}, {', '.join(shape)}, {tail})"


def write_combined_convolution(scope: Scope, node: Node, operation: str, other: str, result: Node) -> str:
    """One call for a ``convolution`` that ends with a second tensor of the result's shape."""
    image, weight, bias, shape = _parts(scope, node, result)
    call = scope.object(convolution_binary(), "convolution_binary")
    return f"{call}({image}, {other}, {weight}, {bias}, {', '.join(shape)}, {operation!r}, None, None, [], None)"


def _parts(scope: Scope, node: Node, result: Node) -> tuple[str, str, str, list[str]]:
    """(image, weight, bias, [padding, stride, dilation, groups]) as text."""
    image, weight, bias, stride, padding, dilation = node.args[:6]
    assert isinstance(image, Node) and isinstance(weight, Node)
    shape = [scope.text(argument) for argument in (padding, stride, dilation, node.args[8])]
    row = "None" if not isinstance(bias, Node) else row_text(scope, bias)
    packed = _packed(scope, node, image, result) if scope.is_constant(weight) else None
    text = scope.read(weight) if packed is None else scope.prepare(weight, packed, ("packed", *map(str, shape)))
    return scope.read(image), text, row, shape


def _packed(scope: Scope, node: Node, image: Node, result: Node) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """How to pack the weight, ``None`` if it should stay as it is."""
    meta = scope.meta(image)
    arguments: dict[str, Any] = dict(describe_op(node).arguments)
    settings = [arguments[name] for name in ("padding", "stride", "dilation", "groups")]
    if meta.rank not in _PACKED_RANKS or arguments["transposed"] is not False or _symbolic(settings):
        return None
    if not channels_last(meta) and scope.keeps_layout(result):
        return None
    padding, stride, dilation, groups = settings
    sizes = [hint_of(size) for size in meta.shape]

    def pack(value: torch.Tensor) -> torch.Tensor:
        return pack_convolution(value.detach(), list(padding), list(stride), list(dilation), groups, sizes)

    return pack


def _symbolic(settings: Sequence[Any]) -> bool:
    return any(
        isinstance(size, SymbolicSize) for item in settings for size in (item if isinstance(item, tuple) else (item,))
    )


def channels_last(meta: TensorMeta) -> bool:
    """Whether an image is laid out with its channels innermost, and not row-major as well."""
    order = (0, *range(2, meta.rank), 1)
    turned = TensorMeta(
        tuple(meta.shape[place] for place in order),
        tuple(meta.stride[place] for place in order),
        meta.dtype,
        meta.device,
    )
    return turned.contiguous() and not meta.contiguous()
