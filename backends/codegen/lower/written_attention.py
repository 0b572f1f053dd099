"""Attention written out, as ``codegen.patterns`` found it, lowered as the template ``attention``.

Place: called by ``lowering`` for the matches of a region.
Input: the ops of one match. Output: what its last op gives.
Method: from the last product back to the first, collecting masks and the scale, also one that queries or keys were
multiplied with before; batches and heads are the leading dimensions that the softmax has, so that views of a packed
product stay views.
Invariants: rows of scores that are minus infinity throughout become NaN, as a softmax makes them, or zeros where the
softmax is the safe one. 16-bit scores are not rounded in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy

from mixbackend.backends.codegen.ir.scalar import Apply, Constant, Expr, Load, compute_dtype, is_element
from mixbackend.backends.codegen.ir.stages import Map
from mixbackend.backends.codegen.ir.templates import ATTENTION
from mixbackend.backends.codegen.lower import view as views
from mixbackend.backends.codegen.lower.access import read_through
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.sizes import import_size
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.contracts import NodeRef, OpView

_PRODUCT = "aten.bmm.default"


@dataclass
class _Form:
    """What stands between two products.

    Attributes:
        softmax, scores: ops of the match.
        masks: values that are added, each with the sizes of the sum.
        scale: of the scores.
    """

    softmax: OpView | None = None
    scores: OpView | None = None
    masks: list[tuple[Tensor, Index]] = field(default_factory=list)
    scale: float = 1.0


def written_attention(lowering: Lowering, ops: Sequence[OpView]) -> Tensor:
    """The result of the last product of a match."""
    form, result = _form(lowering, ops), ops[-1]
    assert form.softmax is not None and form.scores is not None
    batch, heads, queries, keys = _dimensions(form.softmax)
    query, of_query = _without_factor(lowering, _operand(lowering, form.scores, "self"))
    columns, of_key = _without_factor(lowering, _operand(lowering, form.scores, "mat2"))
    key = views.transpose(columns, 1, 2)
    scale = form.scale * of_query * of_key
    value = _operand(lowering, result, "mat2")
    output = (batch, heads, queries, value.sizes[2])
    made, _ = lowering.template(
        ATTENTION,
        (
            views.reshape(lowering, query, (batch, heads, queries, query.sizes[2])),
            views.reshape(lowering, key, (batch, heads, keys, query.sizes[2])),
            views.reshape(lowering, value, (batch, heads, keys, value.sizes[2])),
            _mask(lowering, form, (batch, heads, queries, keys)),
        ),
        ((output, query.dtype), (output[:3], compute_dtype(query.dtype))),
        (("causal", False), ("scale", scale), ("zeros", form.softmax.op == "aten._safe_softmax.default")),
    )
    return views.reshape(lowering, made, lowering.output_sizes)


def _form(lowering: Lowering, ops: Sequence[OpView]) -> _Form:
    by_name = {view.node.name: view for view in ops}
    form, name = _Form(), _inside(ops[-1], by_name)[0]
    while form.scores is None:
        view = by_name[name]
        if view.op == _PRODUCT:
            form.scores = view
            break
        inside, outside = _inside(view, by_name)
        if view.op.startswith(("aten._softmax", "aten._safe_softmax")):
            form.softmax = view
        elif view.op == "aten.add.Tensor":
            sizes = tuple(map(import_size, view.output_tensors[0].shape))
            form.masks.append((lowering.value(outside), sizes))
        elif view.op in ("aten.mul.Tensor", "aten.div.Tensor"):
            factor = view.argument("other")
            assert isinstance(factor, (int, float)), "the pattern asks for a number"
            form.scale *= factor if view.op == "aten.mul.Tensor" else 1.0 / factor
        name = inside
    return form


def _inside(view: OpView, by_name: dict[str, OpView]) -> tuple[str, str]:
    """The argument of an op that the match makes, and the other one, if there is one."""
    names = [value.name for _, value in view.node.arguments if isinstance(value, NodeRef)]
    inside = next(name for name in names if name in by_name)
    return inside, next((name for name in names if name != inside), "")


def _operand(lowering: Lowering, view: OpView, name: str) -> Tensor:
    reference = view.argument(name)
    assert isinstance(reference, NodeRef)
    value = lowering.value(reference.name)
    assert isinstance(value, Tensor)
    return value


def _without_factor(lowering: Lowering, tensor: Tensor) -> tuple[Tensor, float]:
    """A tensor and the number that it is multiplied with, where it was made as such a product and copies of it."""
    made = {stage.target: stage for stage in lowering.stages if isinstance(stage, Map)}

    def followed(index: Index) -> tuple[Expr, float]:
        value, factor = tensor.at(index), 1.0
        while is_element(value) and value.tensor in made:
            stage = made[value.tensor]
            source, number = _multiple(stage.value)
            if source is None or lowering.types[source.tensor].dtype != tensor.dtype:
                break
            value = read_through(lowering, stage, value, source)
            factor *= number
        return value, factor

    loops = lowering.loops(tensor.sizes)
    _, factor = followed(tuple(loop.index for loop in loops))
    if not math.isfinite(factor):
        return tensor, 1.0
    return Tensor(tensor.sizes, tensor.dtype, lambda index: followed(index)[0]), factor


def _multiple(value: Expr) -> tuple[Load | None, float]:
    """An element that a value is, or is a multiple of, and the factor."""
    if isinstance(value, Load):
        return (value, 1.0) if value.mask is None and not value.bindings else (None, 1.0)
    if not isinstance(value, Apply) or value.op not in ("mul", "div"):
        return None, 1.0
    first, second = value.arguments
    if value.op == "mul" and isinstance(first, Constant):
        first, second = second, first
    if not isinstance(first, Load) or not isinstance(second, Constant) or first.mask is not None or first.bindings:
        return None, 1.0
    number = float(second.value)
    if value.op == "div":
        return (first, 1.0 / number) if number else (None, 1.0)
    return first, number


def _dimensions(softmax: OpView) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr, sympy.Expr]:
    *leading, queries, keys = map(import_size, softmax.output_tensors[0].shape)
    if len(leading) == 1:
        return leading[0], sympy.Integer(1), queries, keys
    return sympy.expand(sympy.Mul(*leading[:-1])), leading[-1], queries, keys


def _mask(lowering: Lowering, form: _Form, sizes: Index) -> Tensor | None:
    """The sum of all that is added to scores."""
    masks = [views.reshape(lowering, views.expand(mask, added), sizes) for mask, added in form.masks]
    if len(masks) < 2:
        return masks[0] if masks else None

    def total(index: Index) -> Expr:
        first, second = (mask.at(index) for mask in masks)
        return first + second

    return lowering.lazy(sizes, masks[0].dtype, total)
