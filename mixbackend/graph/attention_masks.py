"""Masks of attention that torch has no quick kernel for become such that it has, where they mean the same.

Place: a pass of ``passes.TRACED``, on Dynamo's graph before capture, while attention is one call: torch chooses its
kernel as it traces, by shapes and strides alone, and where none fits it writes attention out in products and a softmax,
in float32 and with copies.
Input and output: the fx graph, changed in place.
Method: models make masks of sizes alone (Hugging Face's do so when no padding is given). Such a mask is computed here,
once. If it hides what is ahead of each query and nothing else, the call is told that it is causal, and no mask is made
or read. Where gradients flow, a mask that hides nothing is not handed on, and one with rows that do not lie in one
piece, as an expanded column, is copied into rows if a GPU computes in 16 bits. In inference both stay: there they are
constants, and whole written-out attention is found as a pattern by libraries and generators, of which more than one
may be quicker than torch's kernel among its neighbours (BERT's calls on an H200: 1.4 ms, and 2.7 with that).
Invariants: only masks that depend on no input, no weight and no random number, and that nothing writes into, count as
known; probabilities are what they were with the mask.
Non-goals: masks of symbolic sizes stay, but for their rows.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

import torch
import torch.fx
from torch import Tensor
from torch.fx import Node

from mixbackend.contracts.torch_compat import is_higher_order, without_dispatch_modes

Hides = Literal["nothing", "the future"]

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_OPERANDS = (("query", 0), ("key", 1), ("value", 2))
_MASK, _CAUSAL = ("attn_mask", 3), ("is_causal", 5)
"""Arguments of the call: name and position."""
_PURE = frozenset(
    "add and_ arange bitwise_and bitwise_not bitwise_or bool broadcast_to cat contiguous cumsum diff eq expand "
    "expand_as flatten float full full_like ge getitem gt int inv invert le logical_and logical_not logical_or long lt "
    "masked_fill mul ne neg new_full new_ones new_zeros not_ ones ones_like or_ permute repeat reshape rsub "
    "squeeze sub to transpose tril triu type unsqueeze view where zeros zeros_like".split()
)
"""What masks are made with: functions of torch and operator, and methods, with results that depend on arguments
alone."""
_MOST_ELEMENTS = 2**26
"""A mask larger than this is not computed to be looked at."""


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether attention is called."""
    return bool(graph_module.graph.find_nodes(op="call_function", target=_ATTENTION))


def simplify_attention_masks(graph_module: torch.fx.GraphModule) -> int:
    """Rewrite the masks of all attention calls of Dynamo's graph where that changes no result.

    Returns:
        How many calls take another mask, or none, from now on.
    """
    known: dict[Node, Hides | None] = {}
    rows: dict[Node, Node] = {}
    changed = 0
    for call in graph_module.graph.find_nodes(op="call_function", target=_ATTENTION):
        mask = _argument(call, _MASK)
        if not isinstance(mask, Node) or _argument(call, _CAUSAL) or not isinstance(_example(mask), Tensor):
            continue
        if mask not in known:
            known[mask] = _hides(mask)
        if known[mask] == "the future":
            changed += _told_causal(call)
        elif _is_differentiated(call):
            changed += _without_mask(call) if known[mask] == "nothing" else _given_rows(call, mask, rows)
    if changed:
        graph_module.recompile()
    return changed


def _told_causal(call: Node) -> bool:
    _set(call, _CAUSAL, True)
    return _without_mask(call)


def _without_mask(call: Node) -> bool:
    _set(call, _MASK, None)
    return True


def _is_differentiated(call: Node) -> bool:
    operands = (_example(_argument(call, which)) for which in _OPERANDS)
    return any(isinstance(operand, Tensor) and operand.requires_grad for operand in operands)


def _given_rows(call: Node, mask: Node, made: dict[Node, Node]) -> bool:
    """Hand over the mask with its rows in one piece, if a kernel of a GPU asks for that; copied once per mask."""
    if not _wants_rows(_example(_argument(call, _OPERANDS[0]))) or not _is_in_pieces(_example(mask)):
        return False
    if mask not in made:
        made[mask] = _in_rows(mask, call)
    _set(call, _MASK, made[mask])
    return True


def _argument(call: Node, which: tuple[str, int]) -> Any:
    name, position = which
    return call.args[position] if len(call.args) > position else call.kwargs.get(name)


def _set(call: Node, which: tuple[str, int], value: Any) -> None:
    name, position = which
    if len(call.args) > position:
        call.update_arg(position, value)
    else:
        call.update_kwarg(name, value)


def _example(value: Any) -> Any:
    """What Dynamo traced with: a tensor without values."""
    return value.meta.get("example_value") if isinstance(value, Node) else value


def _hides(mask: Node) -> Hides | None:
    """What a mask hides, if it is known by now and one of the two."""
    example = _example(mask)
    static = all(isinstance(size, int) for size in example.shape)
    if not static or example.requires_grad or not 0 < example.numel() <= _MOST_ELEMENTS:
        return None
    made = _made_of(mask)
    if made is None:
        return None
    try:
        with without_dispatch_modes(), torch.no_grad():
            return _kind(_computed(mask, made))
    except Exception:  # no memory for it, say: the mask stays, and eager's error with it
        return None


def _made_of(mask: Node) -> list[Node] | None:
    """All that a mask is computed from, in order; none if a value among that is not known, or changes."""
    wanted, found = [mask], set[Node]()
    while wanted:
        node = wanted.pop()
        if node in found:
            continue
        if not _is_pure(node) or _may_change(node):
            return None
        found.add(node)
        wanted.extend(node.all_input_nodes)
    return [node for node in mask.graph.nodes if node in found]


def _is_pure(node: Node) -> bool:
    if node.op == "call_method":
        return node.target in _PURE
    name = getattr(node.target, "__name__", "")
    owners = (torch, operator)
    return node.op == "call_function" and name in _PURE and any(getattr(o, name, None) is node.target for o in owners)


def _may_change(node: Node) -> bool:
    """Whether something writes into a value: tensors that share memory count their writes together."""
    example = _example(node)
    written = isinstance(example, Tensor) and example._version > 0
    return written or any(is_higher_order(user.target) for user in node.users)


def _computed(mask: Node, made: list[Node]) -> Tensor:
    values: dict[Node, Any] = {}
    for node in made:
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        target = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
        values[node] = target(*arguments[0], **arguments[1])
    return values[mask]


def _kind(mask: Tensor) -> Hides | None:
    if mask.dtype is torch.bool:
        shown, hidden = mask, ~mask
    else:
        shown, hidden = mask == 0, mask <= torch.finfo(mask.dtype).min
    if bool(shown.all()):
        return "nothing"
    # A mask that is spread over queries or keys has one row or column: what is square is so as attention sees it.
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return None
    behind = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    return "the future" if bool(torch.where(behind, shown, hidden).all()) else None


def _wants_rows(query: Any) -> bool:
    """Whether attention runs on a GPU in 16 bits, as stated or by autocast."""
    if not isinstance(query, Tensor) or query.device.type != "cuda":
        return False
    cast = torch.is_autocast_enabled("cuda") and query.dtype is torch.float32
    dtype = torch.get_autocast_dtype("cuda") if cast else query.dtype
    return dtype in (torch.float16, torch.bfloat16)


def _is_in_pieces(mask: Tensor) -> bool:
    return mask.dim() > 0 and mask.stride(-1) != 1 and all(not isinstance(size, int) or size > 0 for size in mask.shape)


def _in_rows(mask: Node, call: Node) -> Node:
    """Code for a copy with rows in one piece; what is spread over batch and heads stays spread."""
    example, rows = _example(mask), mask
    for dimension in range(example.dim() - 1):
        if example.stride(dimension) == 0:
            rows = _called(call, rows, "narrow", dimension, 0, 1)
    return _called(call, _called(call, rows, "contiguous"), "expand_as", mask)


def _called(before: Node, tensor: Node, method: str, *arguments: Any) -> Node:
    with before.graph.inserting_before(before):
        made = before.graph.call_method(method, (tensor, *arguments))
    made.meta["stack_trace"] = before.meta.get("stack_trace", "")
    return made
