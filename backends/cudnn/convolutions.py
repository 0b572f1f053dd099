"""Convolutions: text of their calls, with what follows them.

Place: rules of ``library``. The kernels follow torch's layouts: channels-last results for channels-last images or
weights, else row-major ones. A constant weight gets its image's layout when the region is bound: otherwise it would be
copied into it at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.backends.common.library import Scope
from mixbackend.backends.cudnn.kernels import fused_add_relu, fused_relu, plain_add_relu, plain_relu
from mixbackend.backends.cudnn.trials import Way, fastest, stand_in
from mixbackend.contracts.rate_rows import is_channels_last
from mixbackend.contracts.torch_compat import rounds_convolutions

Node = torch.fx.Node

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def write_convolution(scope: Scope, node: Node) -> str:
    """A ``convolution`` alone."""
    image, _, _, *rest = node.args
    settings = ", ".join(scope.text(argument) for argument in rest)
    call = scope.object(torch.ops.aten.convolution.default, "convolution")
    assert isinstance(image, Node)
    return f"{call}({scope.read(image)}, {_weight(scope, node)}, {scope.text(node.args[2])}, {settings})"


def write_fused(scope: Scope, node: Node, other: Node | None) -> str:
    """``relu(convolution + other)``, in one kernel where that is the faster way."""
    image, _, bias, *settings = node.args[:6]
    assert isinstance(image, Node)
    ways = (fused_relu, plain_relu) if other is None else (fused_add_relu, plain_add_relu)
    way: Any = ways[_choice(scope, node, other, ways)]
    operands = [scope.read(image), _weight(scope, node), scope.text(bias)]
    operands += [] if other is None else [scope.read(other)]
    return f"{scope.object(way)}({', '.join([*operands, *map(scope.text, settings)])})"


def _choice(scope: Scope, node: Node, other: Node | None, ways: Sequence[Callable[..., torch.Tensor]]) -> int:
    image, weight, bias, *settings = node.args[:6]
    given = [image, weight, bias] if other is None else [image, weight, bias, other]
    metas = [scope.meta(item) if isinstance(item, Node) else None for item in given]
    relaid = scope.is_constant(weight) and is_channels_last(scope.meta(image))  # type: ignore[arg-type]
    switches = (rounds_convolutions(), torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)

    def make() -> list[Way]:
        values = [None if meta is None else stand_in(meta) for meta in metas]
        if relaid and values[1] is not None:
            values[1] = values[1].contiguous(memory_format=torch.channels_last)
        return [_call(way, values, settings) for way in ways]

    question = ("convolution", *map(str, metas), settings, relaid, switches)
    return fastest([way.__name__ for way in ways], question, make)


def _call(way: Callable[..., torch.Tensor], values: Sequence[Any], settings: Sequence[Any]) -> Way:
    return lambda: way(*values, *settings)


def _weight(scope: Scope, node: Node) -> str:
    image, weight = node.args[:2]
    assert isinstance(image, Node) and isinstance(weight, Node)
    meta = scope.meta(image)
    if not scope.is_constant(weight) or not is_channels_last(meta):
        return scope.read(weight)
    form = _FORMATS[meta.rank]
    return scope.prepare(weight, lambda value: value.detach().contiguous(memory_format=form), "channels last")
