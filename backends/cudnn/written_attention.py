"""Attention that was written out, as a call of one of torch's kernels.

Place: rule of ``library`` for matches of attention. Input: the matched nodes. Output: text of one call
on the values in front of all conversions and copies: views of projections are read as they lie.
Method: without a mask, flash, memory-efficient and cuDNN's kernels are run against one another once per shape; with
one, the two that have a bias, if they give what the written ops give, zeros for a row without any key included.
Invariants: a mask is copied into aligned rows only where it does not lie so, and once where it is a constant; a
constant of zeros throughout is no mask. The result has memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor

from mixbackend.backends.common.attention_patterns import FACTORS, PRODUCT, TURNS
from mixbackend.backends.common.library import Scope
from mixbackend.backends.cudnn.attention import Kernel, cudnn, efficient, flash
from mixbackend.backends.cudnn.trials import Way, fastest, stand_in
from mixbackend.contracts.describe_op import operator_name

Node = torch.fx.Node
Steps = tuple[tuple[str, tuple[Any, ...]], ...]

_PLAIN: tuple[Kernel, ...] = (flash, efficient, cudnn)
_BIASED: tuple[Kernel, ...] = (efficient, cudnn)
_ALIGNED = 8
"""Elements of 16 bits that kernels load at once."""
_ADDRESS = 16
_TOLERANCE = 2.0**-5
"""Of results of values below 1, against float32: a few roundings to bfloat16."""


@dataclass(frozen=True)
class _Operand:
    """A value in front of the match, and how it becomes what the kernels take, by methods of tensors."""

    source: Node
    steps: Steps = ()

    def text(self, scope: Scope) -> str:
        calls = (f".{name}({', '.join(map(repr, arguments))})" for name, arguments in self.steps)
        return scope.read(self.source) + "".join(calls)

    def made_of(self, value: Tensor) -> Tensor:
        for name, arguments in self.steps:
            value = getattr(value, name)(*arguments)
        return value


@dataclass(frozen=True)
class _Call:
    """What a match computes: attention of query, key and value."""

    operands: tuple[_Operand, _Operand, _Operand]
    mask: Node | None
    scale: float


def write_written(scope: Scope, matched: Sequence[Node]) -> str:
    """A matched attention as one call."""
    call = _read(scope, matched)
    known = call.mask is not None and scope.is_constant(call.mask)
    plain, biased, bias = "None", "None", "None"
    if call.mask is None or known:
        plain = scope.object(_choice(scope, call, _PLAIN, None))
    if call.mask is not None:
        biased = scope.object(_choice(scope, call, _BIASED, call.mask))
        bias = scope.prepare(call.mask, aligned_unless_zeros) if known else _aligned_text(scope, call.mask)
    operands = ", ".join(operand.text(scope) for operand in call.operands)
    text = f"{scope.object(attend)}({operands}, {bias}, {biased}, {plain}, {call.scale!r})"
    if operator_name(matched[-1].target) == "aten.clone.default":
        return f"{text}.transpose(1, 2).contiguous()"
    return text if scope.meta(matched[-1]).rank == 4 else f"{text}.flatten(0, 1)"


def _aligned_text(scope: Scope, mask: Node) -> str:
    return f"{scope.object(aligned)}({scope.read(mask)})"


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    biased: Kernel | None,
    plain: Kernel | None,
    scale: float,
) -> Tensor:
    """Attention by one of two kernels: by the first with a bias, by the second without one."""
    kernel = plain if bias is None else biased
    assert kernel is not None
    if bias is not None:
        bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return kernel(_in_rows(query), _in_rows(key), _in_rows(value), bias, False, scale)[0]


def aligned(mask: Tensor) -> Tensor:
    """The mask with its rows in one piece, each at a multiple of 16 bytes; a copy only where it lies otherwise."""
    if mask.dim() and _is_in_rows(mask):
        return mask
    for dimension in range(mask.dim() - 1):
        mask = mask if mask.stride(dimension) else mask.narrow(dimension, 0, 1)
    mask = mask if mask.dim() else mask.view(1)
    *outer, keys = mask.shape
    rows = mask.new_empty((*outer, -(-keys // _ALIGNED) * _ALIGNED))[..., :keys]
    return rows.copy_(mask)


def aligned_unless_zeros(mask: Tensor) -> Tensor | None:
    """The same of a mask that is known; none if it changes nothing."""
    return aligned(mask) if bool(mask.any()) else None


def _in_rows(value: Tensor) -> Tensor:
    return value if _is_in_rows(value) else value.contiguous()


def _is_in_rows(value: Tensor) -> bool:
    """Whether kernels can load it as it lies."""
    *outer, last = value.stride()
    odd = any(step % _ALIGNED and size > 1 for step, size in zip(outer, value.shape, strict=False))
    return (last == 1 or value.shape[-1] == 1) and not odd and value.data_ptr() % _ADDRESS == 0


# --- reading a match --------------------------------------------------------------------------------------------------


def _read(scope: Scope, matched: Sequence[Node]) -> _Call:
    inside = frozenset(matched)
    first, second = (node for node in matched if operator_name(node.target) == PRODUCT)
    softmax = next(node for node in matched if "softmax" in operator_name(node.target))
    *leading, queries, keys = scope.meta(softmax).shape
    batch, heads = leading if len(leading) == 2 else (leading[0], 1)
    size, width = scope.meta(_tensors(first)[0]).shape[2], scope.meta(_tensors(second)[1]).shape[2]
    query, of_query = _source(_tensors(first)[0], inside)
    turn, of_columns = _source(_tensors(first)[1], inside, TURNS)
    key, of_key = _source(turn.all_input_nodes[0], inside) if turn in inside else (turn, 1.0)
    value, _ = _source(_tensors(second)[1], inside)
    mask, of_scores = _between(first, softmax, inside)
    operands = (
        _Operand(query, _reshaped(scope.meta(query).shape, (batch, heads, queries, size))),
        _Operand(key, _turned(scope, key, turn, (batch, heads, size, keys))),
        _Operand(value, _reshaped(scope.meta(value).shape, (batch, heads, keys, width))),
    )
    return _Call(operands, mask, of_query * of_columns * of_key * of_scores)


def _tensors(node: Node) -> tuple[Node, Node]:
    left, right = node.args[:2]
    assert isinstance(left, Node) and isinstance(right, Node)
    return left, right


def _source(node: Node, inside: Collection[Node], until: Collection[str] = ()) -> tuple[Node, float]:
    """What a value was in front of the match, or after one of some ops, and the factor between the two."""
    factor = 1.0
    while node in inside and operator_name(node.target) not in until:
        factor *= _factor(node)
        node = node.all_input_nodes[0]
    return node, factor


def _factor(node: Node) -> float:
    name = operator_name(node.target)
    if name not in FACTORS:
        return 1.0
    number = node.args[1]
    assert isinstance(number, (int, float)), "the pattern asks for a number"
    return float(number) if ".mul." in name else 1.0 / number


def _between(first: Node, softmax: Node, inside: Collection[Node]) -> tuple[Node | None, float]:
    """The mask that is added to the scores, and the factor that they have by then."""
    node, factor, mask = softmax.all_input_nodes[0], 1.0, None
    while node is not first:
        factor *= _factor(node)
        if operator_name(node.target) != "aten.add.Tensor":
            node = node.all_input_nodes[0]
            continue
        left, right = _tensors(node)
        node, other = (left, right) if _leads_to(first, left, inside) else (right, left)
        mask, _ = _source(other, inside)
    return mask, factor


def _leads_to(first: Node, node: Node, inside: Collection[Node]) -> bool:
    while node in inside and node is not first:
        node = node.all_input_nodes[0]
    return node is first


def _reshaped(shape: Sequence[Any], wanted: Sequence[Any]) -> Steps:
    return () if tuple(shape) == tuple(wanted) else (("reshape", tuple(wanted)),)


def _turned(scope: Scope, key: Node, turn: Node, columns: Sequence[Any]) -> Steps:
    """From the value of the keys to rows: through the transposed keys, which the product reads."""
    if turn is key:
        return (*_reshaped(scope.meta(key).shape, columns), ("transpose", (-2, -1)))
    start = scope.meta(turn.all_input_nodes[0]).shape
    rank, arguments = len(start), turn.args[1:]
    swapped = operator_name(turn.target) == "aten.transpose.int" and {item % rank for item in arguments} == {  # type: ignore[operator]
        rank - 2,
        rank - 1,
    }
    if swapped:
        return _reshaped(scope.meta(key).shape, (*columns[:2], columns[3], columns[2]))
    method = "transpose" if operator_name(turn.target) == "aten.transpose.int" else "permute"
    before = _reshaped(scope.meta(key).shape, start)
    after = _reshaped(scope.meta(turn).shape, columns)
    return (*before, (method, tuple(arguments)), *after, ("transpose", (-2, -1)))


# --- choosing a kernel ------------------------------------------------------------------------------------------------


def _choice(scope: Scope, call: _Call, kernels: Sequence[Kernel], mask: Node | None) -> Kernel:
    metas = [scope.meta(operand.source) for operand in call.operands]
    of_mask = None if mask is None else scope.meta(mask)
    steps = tuple(operand.steps for operand in call.operands)

    def make() -> list[Way]:
        values = [operand.made_of(stand_in(meta)) for operand, meta in zip(call.operands, metas, strict=True)]
        bias = None
        if of_mask is not None:
            bias = aligned(stand_in(of_mask)).clone()
            bias.select(-2, 0).fill_(-math.inf)
        return [_way(kernel, values, bias, call.scale) for kernel in kernels]

    question = ("written attention", *map(str, metas), of_mask, steps, call.scale)
    return kernels[fastest([kernel.__name__ for kernel in kernels], question, make)]


def _way(kernel: Kernel, values: Sequence[Tensor], bias: Tensor | None, scale: float) -> Way:
    query, key, value = values

    def run() -> Tensor:
        return attend(query, key, value, bias, kernel, kernel, scale)

    def lose() -> Tensor:
        raise RuntimeError(f"{kernel.__name__} gives other values with this mask")

    return run if bias is None or _is_right(run, values, bias, scale) else lose


def _is_right(run: Way, values: Sequence[Tensor], bias: Tensor, scale: float) -> bool:
    """Whether a kernel gives zeros for a row without keys, and else the formula's values; of one batch and head."""
    try:
        made = run()[0, 0].float()
    except RuntimeError:
        return False
    query, key, value = (item[0, 0].float() for item in values)
    whole = bias.expand(values[0].shape[0], values[0].shape[1], query.shape[0], key.shape[0])
    scores = query @ key.mT * scale + whole[0, 0].float()
    wanted = torch.softmax(scores, -1).nan_to_num() @ value
    return torch.allclose(made, wanted, rtol=_TOLERANCE, atol=_TOLERANCE)
