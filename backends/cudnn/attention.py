"""Attention: whichever of torch's kernels for GPUs is fastest.

Place: rule of ``library`` for the three operators that torch's ``scaled_dot_product_attention`` becomes on a GPU. They
compute the same; torch chooses among them by rule, here they are run against one another once per shape.
Invariants: another kernel than the traced one is taken only if nothing but the first result is read, only if it has
code for the type (cuDNN's does not look: it reads float32 as if it were float16), and only if it gives the first result
the traced strides: what follows would copy otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.backends.common.gpu_library import HALVES
from mixbackend.backends.common.library import Scope
from mixbackend.backends.cudnn.trials import Way, fastest, stand_in
from mixbackend.contracts import NodeRef, TensorMeta, hint_of
from mixbackend.contracts.describe_op import describe_op, value_meta

aten = torch.ops.aten
Node = torch.fx.Node
Kernel = Callable[..., tuple[Any, ...]]


def flash(query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: float | None) -> tuple[Any, ...]:
    """Flash attention; has no bias."""
    return aten._scaled_dot_product_flash_attention.default(query, key, value, 0.0, causal, False, scale=scale)


def efficient(query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: float | None) -> tuple[Any, ...]:
    """Memory-efficient attention."""
    return aten._scaled_dot_product_efficient_attention.default(
        query, key, value, bias, False, 0.0, causal, scale=scale
    )


def cudnn(query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: float | None) -> tuple[Any, ...]:
    """cuDNN's attention."""
    return aten._scaled_dot_product_cudnn_attention.default(
        query, key, value, bias, False, 0.0, causal, False, scale=scale
    )


_KERNELS: dict[str, Kernel] = {
    "aten._scaled_dot_product_flash_attention.default": flash,
    "aten._scaled_dot_product_efficient_attention.default": efficient,
    "aten._scaled_dot_product_cudnn_attention.default": cudnn,
}


def write_attention(scope: Scope, node: Node) -> str:
    """One of the kernels, as a call that returns the attention first."""
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users):
        arguments = [scope.text(item) for item in node.args]
        arguments += [f"{name}={scope.text(item)}" for name, item in node.kwargs.items()]
        return f"{scope.object(node.target, 'attention')}({', '.join(arguments)})"
    given = dict(describe_op(node).arguments)
    sources = {source.name: source for source in node.all_input_nodes}
    tensors = [_tensor(sources, given.get(name)) for name in ("query", "key", "value", "attn_bias")]
    settings = [given["is_causal"], given.get("scale")]
    kernel = _choice(scope, node, tensors, settings)
    operands = [*map(scope.text, tensors), *map(scope.text, settings)]
    return f"{scope.object(kernel)}({', '.join(operands)})"


def _tensor(sources: Mapping[str, Node], argument: Any) -> Node | None:
    return sources[argument.name] if isinstance(argument, NodeRef) else None


def _choice(scope: Scope, node: Node, tensors: Sequence[Any], settings: Sequence[Any]) -> Kernel:
    metas = [scope.meta(item) if isinstance(item, Node) else None for item in tensors]
    traced = _KERNELS[str(node.target)]
    possible = [traced, *(kernel for kernel in _KERNELS.values() if kernel is not traced)]
    first = metas[0]
    assert first is not None
    if first.dtype not in HALVES:
        possible = [traced, *(kernel for kernel in possible[1:] if kernel is efficient)]
    if metas[3] is not None:
        possible = [kernel for kernel in possible if kernel is not flash]
    result = value_meta(node.meta["val"][0])
    assert isinstance(result, TensorMeta)

    def make() -> list[Way]:
        values = [None if meta is None else stand_in(meta) for meta in metas]
        return [_way(kernel, values, settings, result) for kernel in possible]

    question = ("attention", node.target, *map(str, metas), settings, result)
    return possible[fastest([kernel.__name__ for kernel in possible], question, make)]


def _way(kernel: Kernel, values: Sequence[Any], settings: Sequence[Any], result: TensorMeta) -> Way:
    wanted = [hint_of(step) for step in result.stride]
    relevant = [place for place, size in enumerate(result.shape) if hint_of(size) > 1]

    def run() -> torch.Tensor:
        made = kernel(*values, *settings)[0]
        if any(made.stride(place) != wanted[place] for place in relevant):
            raise RuntimeError(f"{kernel.__name__} gives other strides than were traced")
        return made

    return run
