"""Unpacked codes: what takes numbers of few bits out of bytes becomes one expression of each byte.

Place: a pass of captured graphs (``passes``).
Input and output: the fx graph, changed in place.
``stack([w & 15, w >> 4], -1)``, or ``cat``, of one tensor of bytes becomes ``(w[..., None] >> arange(0, 8, 4)) & 15``.
Parts come in any order; conversions, and numbers that are added or subtracted, which all parts go through, follow.
So codes are no larger than the bytes that they lie in until an op computes with them: each part alone has as many
elements as its source has, and would be kept as a constant, in which all codes have 8 bits.
Invariants: shapes, strides, types and values as traced, bit by bit.
Non-goals: accelerators; parts with signs of their own (``w << 4 >> 4``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from mixbackend.contracts.torch_compat import is_fake
from mixbackend.graph.new_nodes import NodeWriter

aten = torch.ops.aten
_BITS = 8
_SHIFTS = frozenset({aten.bitwise_right_shift.Tensor_Scalar, aten.__rshift__.Scalar})
_MASKS = frozenset({aten.bitwise_and.Scalar, aten.__and__.Scalar})
_STEPS = frozenset({aten.add.Tensor, aten.sub.Tensor, aten._to_copy.default})
_JOINS = frozenset({aten.stack.default, aten.cat.default})

_Step = tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""An op on one tensor: its target, its arguments after that, and its options."""


@dataclass(frozen=True)
class _Part:
    """Bits of every byte of a tensor: ``source >> shift & mask``, as a type, and what follows."""

    source: torch.fx.Node
    shift: int
    mask: int
    dtype: torch.dtype
    steps: tuple[_Step, ...]


@dataclass(frozen=True)
class _Codes:
    """Parts of one tensor side by side.

    Attributes:
        first: the first part.
        step: from the shift of a part to that of the next.
        count: of parts.
        axis: of the result along which they are joined.
    """

    first: _Part
    step: int
    count: int
    axis: int


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether parts of bytes are joined."""
    return any(_found(node) is not None for node in _joins(graph_module.graph))


def write_expressions(graph_module: torch.fx.GraphModule) -> int:
    """Write all that is found as expressions; returns how many."""
    graph = graph_module.graph
    found = [(node, codes) for node in _joins(graph) if (codes := _found(node)) is not None]
    for node, codes in found:
        _write(graph, node, codes)
    if found:
        graph.eliminate_dead_code()
        graph_module.recompile()
    return len(found)


def _joins(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for target in _JOINS for node in graph.find_nodes(op="call_function", target=target)]


def _found(node: torch.fx.Node) -> _Codes | None:
    given, value = node.args[0], node.meta.get("val")
    if not isinstance(given, (list, tuple)) or len(given) < 2 or not isinstance(value, torch.Tensor):
        return None
    parts = [part for item in given if (part := _part(item)) is not None]
    if len(parts) != len(given) or value.device.type != "cpu" or not is_fake(value):
        return None
    first, second = parts[:2]
    step = second.shift - first.shift
    alike = all(
        (part.source, part.mask, part.dtype, part.steps) == (first.source, first.mask, first.dtype, first.steps)
        and part.shift == first.shift + place * step
        for place, part in enumerate(parts)
    )
    sizes = first.source.meta["val"].shape
    if not alike or step == 0 or not sizes or not all(isinstance(size, int) for size in sizes):
        return None
    if _is_spread(node, value):
        return None
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    assert isinstance(dim, int)
    return _Codes(first, step, len(parts), dim % value.dim())


def _is_spread(node: torch.fx.Node, codes: torch.Tensor) -> bool:
    """Whether each code is one for many elements, as a zero of a group is: such constants are small as they are."""
    users = list(node.users)
    while len(users) == 1 and len(users[0].all_input_nodes) == 1:
        users = list(users[0].users)
    made = [user.meta.get("val") for user in users]
    return any(isinstance(item, torch.Tensor) and item.numel() > codes.numel() for item in made)


def _part(node: Any) -> _Part | None:
    """What a tensor takes out of bytes."""
    steps: list[_Step] = []
    while isinstance(node, torch.fx.Node) and node.target in _STEPS and len(node.all_input_nodes) == 1:
        if node.args[0] is not node.all_input_nodes[0]:
            return None
        steps.insert(0, (node.target, tuple(node.args[1:]), tuple(node.kwargs.items())))
        node = node.args[0]
    if not isinstance(node, torch.fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    dtype = node.meta["val"].dtype
    mask: Any = None
    shift: Any = 0
    if node.target in _MASKS:
        node, mask = node.args
    if isinstance(node, torch.fx.Node) and node.target in _SHIFTS:
        node, shift = node.args
    while isinstance(node, torch.fx.Node) and _widens(node):
        node = node.args[0]
    numbers = isinstance(shift, int) and 0 <= shift < _BITS and (mask is None or isinstance(mask, int))
    if not isinstance(node, torch.fx.Node) or not numbers or (mask is None and shift == 0):
        return None
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.uint8:
        return None
    # Bits that a shift leaves of a byte are zeros further up.
    kept = (1 << (_BITS - shift)) - 1
    return _Part(node, shift, kept if mask is None else mask & kept, dtype, tuple(steps))


def _widens(node: torch.fx.Node) -> bool:
    """Whether a node makes wider integers of bytes."""
    if node.target is not aten._to_copy.default or set(node.kwargs) != {"dtype"}:
        return False
    dtype = node.kwargs["dtype"]
    return isinstance(dtype, torch.dtype) and not dtype.is_floating_point and torch.iinfo(dtype).max >= (1 << _BITS) - 1


def _write(graph: torch.fx.Graph, node: torch.fx.Node, codes: _Codes) -> None:
    write, part, value = NodeWriter(graph, node), codes.first, node.meta["val"]
    source = part.source.meta["val"]
    with graph.inserting_before(node):
        end = part.shift + codes.count * codes.step
        options = {"dtype": torch.uint8, "device": source.device, "pin_memory": False}
        shifts = write(aten.arange.start_step, part.shift, end, codes.step, **options)
        if codes.axis < source.dim():
            shifts = write(aten.reshape.default, shifts, [codes.count, *(1 for _ in source.shape[codes.axis :])])
        bytes_ = write(aten.unsqueeze.default, part.source, codes.axis)
        result = write(aten.bitwise_and.Scalar, write(aten.bitwise_right_shift.Tensor, bytes_, shifts), part.mask)
        result = write.converted(result, part.dtype)
        for target, arguments, named in part.steps:
            result = write(target, result, *arguments, **dict(named))
        if result.meta["val"].shape != value.shape:
            result = write(aten.reshape.default, result, list(value.shape))
    node.replace_all_uses_with(result)
    graph.erase_node(node)
