"""Lifted scalars: tensors of one element that tracing lifted out of the code become numbers of the operators again.

Place: a pass of ``passes.CAPTURED`` and of joint graphs, after ``constants.known_values``, which leaves a ``full`` on
the processor of what was computed from such tensors. Input and output: the fx graph, changed in place.
``mask[rows] = 3`` is traced as filling memory with a tensor on the processor, which the graph holds. On a GPU every
such tensor is a copy that the processor waits for, keeps kernels out of CUDA graphs, and is a value without a name for
backends that compile the region. What it holds is known when the graph is captured.
Eager's arithmetic takes a number as it takes a tensor without dimensions on the processor: by its value, in the type
that it computes in. It does so where both give that type; then a number is written.
Tensors of positions that are lifted, too, go to the device of what they index by an operator of its own: in inference
that is done once.
Invariants: results are bit by bit what they were; a tensor that is written into, viewed or given to subgraphs stays;
operators with types that depend on whether they take a tensor or a number keep their tensor, moved to where they
compute.
Non-goals: powers (their digits depend on that).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import OpTag
from mixbackend.contracts.describe_op import describe_op
from mixbackend.graph.constants.known_values import LIFTED, LIKES, held_tensor, origin_of

aten = torch.ops.aten
_FILLED = aten.full.default
_WRITING = (aten.fill.Tensor, aten.copy.default)
"""Take what they fill, then what with; only the value of the latter counts."""
_COMPARING: Mapping[Any, Any] = {
    getattr(aten, name).Tensor: getattr(aten, name).Scalar for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_TAKING_NUMBERS = frozenset(
    {*(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.div.Tensor_mode), *_COMPARING}
)
"""Operators of two tensors that take a number for one of them; comparisons have an operator for that."""
_SWAPPED = (aten.add.Tensor, aten.mul.Tensor)
"""Those that give the same the other way round, where the number needs no more digits than the result has: on the
processor only a second operand keeps them."""
_CONVERTING = (aten.where.self,)
"""Convert what they take before anything else."""
_INDEXING = (aten.index.Tensor, aten.index_put.default)
"""Take a tensor and a list of positions, which may be the processor's wherever the tensor is."""
_INSEPARABLE = frozenset({OpTag.VIEW, OpTag.MUTATES, OpTag.HIGHER_ORDER, OpTag.EFFECT, OpTag.DATA_DEPENDENT})


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether there is a lifted tensor, or a number in memory of the processor."""
    return bool(_sources(graph_module.graph))


def write_lifted_numbers(graph_module: torch.fx.GraphModule) -> int:
    """Replace lifted tensors of one element where that changes no result.

    Returns:
        How many uses of such tensors were replaced, or moved to another device.
    """
    replaced = 0
    for lifted in _sources(graph_module.graph):
        number = _number(graph_module, lifted)
        names = _names_of(lifted)
        uses = [(user, name) for name in names for user in _users(name) if user not in names]
        if number is None or any(describe_op(user).tags & _INSEPARABLE for user, _ in uses):
            continue
        for user, name in uses:
            replaced += (
                _filled_with(user, name, number) or _computed_with(user, name, number) or _moved(user, name, number)
            )
        _erase_unused([*reversed(names), *lifted.all_input_nodes])
    for target in _INDEXING:
        for node in graph_module.graph.find_nodes(op="call_function", target=target):
            replaced += _positions_moved(node)
    return replaced


def _sources(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Lifted tensors, and numbers in memory of the processor."""
    filled = [node for node in graph.find_nodes(op="call_function", target=_FILLED) if not node.args[0]]
    here = [node for node in filled if node.users and node.meta["val"].device.type == "cpu"]
    return [*graph.find_nodes(op="call_function", target=LIFTED), *here]


def _names_of(lifted: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensor and its likes: ``torch.tensor(...)`` in the code detaches what it makes."""
    names = [lifted]
    for name in names:
        names += [user for user in name.users if user.target in LIKES]
    return names


def _users(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [user for user in node.users if user.op == "call_function"]


def _number(module: torch.fx.GraphModule, node: torch.fx.Node) -> float | None:
    """What a lifted tensor without dimensions holds, or memory that was filled with a number."""
    if node.target is _FILLED:
        filling, dtype = node.args[1], node.meta["val"].dtype
        if not isinstance(filling, (bool, int, float)) or not _converts_to(filling, dtype):
            return None
        return torch.tensor(filling, dtype=dtype, device="cpu").item()
    source = node.args[0]
    value = held_tensor(module, source)
    if value is None or value.dim() or value.is_complex() or set(source.users) != {node}:  # type: ignore[union-attr]
        return None
    return value.item()


def _filled_with(user: torch.fx.Node, lifted: torch.fx.Node, number: float) -> bool:
    """Let an operator that fills memory with the tensor take the number."""
    if user.target not in _WRITING or user.args[1] is not lifted or user.args[0] is lifted:
        return False
    if not _converts_to(number, user.meta["val"].dtype):
        return False
    user.target = aten.fill.Scalar
    user.args = (user.args[0], number)
    user.kwargs = {}
    return True


def _computed_with(user: torch.fx.Node, lifted: torch.fx.Node, number: float) -> bool:
    """Let an operator of two tensors compute with the number instead of one of them."""
    if user.target is aten.masked_fill.Tensor:
        return _masked_with(user, lifted, number)
    if user.target not in _TAKING_NUMBERS or isinstance(number, bool) or not _is_of_64_bits(number):
        return False
    first, second = user.args[:2]
    other = first if second is lifted else second
    if other is lifted or not isinstance(other, torch.fx.Node) or lifted.meta["val"].device.type != "cpu":
        return False
    if not _computes_alike(other.meta["val"], lifted.meta["val"], number):
        return False
    if second is lifted:
        user.args = (first, number, *user.args[2:])
    elif user.target in _SWAPPED and not user.kwargs and _is_held_by(number, user.meta["val"].dtype):
        user.args = (second, number)
    elif user.target not in _COMPARING and user.meta["val"].device.type != "cpu":
        user.args = (number, *user.args[1:])
    else:
        return False
    user.target = _COMPARING.get(user.target, user.target)
    return True


def _masked_with(user: torch.fx.Node, lifted: torch.fx.Node, number: float) -> bool:
    memory, mask, value = user.args
    if value is not lifted or lifted in (memory, mask) or not _converts_to(number, user.meta["val"].dtype):
        return False
    user.target = aten.masked_fill.Scalar
    user.args = (memory, mask, number)
    return True


def _computes_alike(other: torch.Tensor, lifted: torch.Tensor, number: float) -> bool:
    """Whether an operator computes in the same type with a number as with the tensor, and that has such a number."""
    form, scalar = (torch.empty((1,) * item.dim(), dtype=item.dtype, device="meta") for item in (other, lifted))
    computed = torch.result_type(form, number)
    return computed == torch.result_type(form, scalar) and (computed.is_complex or _converts_to(number, computed))


def _is_of_64_bits(number: float) -> bool:
    return isinstance(number, float) or -(1 << 63) <= number < 1 << 63


def _moved(user: torch.fx.Node, lifted: torch.fx.Node, number: float) -> bool:
    """Let an operator on another device read a tensor that is made there.

    Kernels of a GPU take a tensor of the processor in the type that they compute in, and one of their own in that of
    their result: so only what both hold alike is moved, where an operator does not convert it anyway.
    """
    mine, result = lifted.meta.get("val"), user.meta.get("val")
    if not isinstance(mine, torch.Tensor) or not isinstance(result, torch.Tensor) or mine.device == result.device:
        return False
    if user.target not in _CONVERTING and not _is_held_by(number, result.dtype):
        return False
    graph = user.graph
    with graph.inserting_before(user):
        keywords: dict[str, Any] = {"dtype": mine.dtype, "device": result.device, "pin_memory": False}
        made = graph.call_function(aten.full.default, ([], number), keywords)
    with result.fake_mode:  # type: ignore[attr-defined]
        made.meta = {**lifted.meta, "val": aten.full.default([], number, **keywords)}
    user.replace_input_with(lifted, made)
    return True


def _converts_to(number: float, dtype: torch.dtype) -> bool:
    """Whether torch takes a number for memory of this type: unlike elements of tensors, numbers must be in range."""
    if dtype.is_complex or dtype is torch.bool:
        return dtype is torch.bool
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    return number == number // 1 and torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def _positions_moved(node: torch.fx.Node) -> int:
    """Let an operator on another device read lifted positions there; masks stay: they are counted before they index."""
    moved = 0
    indexed = node.args[0].meta["val"]  # type: ignore[union-attr]
    positions: list[Any] = list(node.args[1])  # type: ignore[arg-type]
    for place, item in enumerate(positions):
        if item is None or origin_of(item).target is not LIFTED or item.meta["val"].dtype == torch.bool:
            continue
        if item.meta["val"].device == indexed.device:
            continue
        with node.graph.inserting_before(node):
            copy = node.graph.call_function(aten._to_copy.default, (item,), {"device": indexed.device})
        with indexed.fake_mode:
            copy.meta = {**item.meta, "val": aten._to_copy.default(item.meta["val"], device=indexed.device)}
        positions[place] = copy
        moved += 1
    if moved:
        node.update_arg(1, positions)
    return moved


def _is_held_by(number: float, dtype: torch.dtype) -> bool:
    if not dtype.is_floating_point:
        return not dtype.is_complex
    if isinstance(number, bool):
        return True
    held = torch.tensor(float(number), dtype=torch.float64).to(dtype).item()
    return held == number or (math.isnan(held) and math.isnan(number))


def _erase_unused(nodes: Sequence[torch.fx.Node]) -> None:
    for node in nodes:
        if not node.users:
            node.graph.erase_node(node)
