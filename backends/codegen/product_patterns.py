"""Patterns: a product with a quantised weight, as wider numbers, for its right matrix, as one label for the planner.

Place: ``Backend.patterns`` of targets with the template ``product``; ``schedule.packed_products`` packs the weight as
it is stored, so that a conversion costs nothing. Scales, one for each column, follow the product as any map does.
Form: ``mm(x, weight.to(x.dtype))`` and ``addmm`` likewise, where a transposition may follow the conversion; and the
same with ``(weight.to(type) - zero) * scale``, with or without the zero, where both are of groups of terms. Codes of
few bits in bytes are ``(weight >> shifts) & mask`` there; torch's product with those of 4 bits is a form of its own.
Invariants: a match is accepted only if all of the weight is known when the region is bound, and if its numbers have 8
bits, which all floats hold exactly.
Costs: those of a product of float32, which is what is computed, that reads the weight as it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch

from mixbackend.backends.codegen.ir.products import NARROW
from mixbackend.contracts import Any as Anything
from mixbackend.contracts import (
    InputRole,
    InputView,
    Match,
    NodeRef,
    Op,
    OpView,
    Pattern,
    Supported,
    TensorMeta,
    Unsupported,
    Verdict,
)

PREFIX = "widened"
"""Begins the names of these patterns."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_CONVERSION = "conversion"
_UNPACKING = "unpacking"
_PRODUCT = "product"
_WEIGHT = "weight"
_TURN = "turn"
_SCALING = "scaling"
_MOVING = "moving"
_ZERO = "zero"
_PACKED_ANEW = Unsupported("declined", "the weight would be packed anew at each call")
_TURNS = ("aten.t.default", "aten.permute.default", "aten.transpose.int")


@lru_cache(maxsize=8)
def product_patterns(devices: frozenset[str]) -> tuple[Pattern, ...]:
    """All forms, on devices with a target that has the template."""
    return tuple(_all(devices))


def _all(devices: frozenset[str]) -> Iterator[Pattern]:
    def check(match: Match) -> Verdict:
        view = match.part(_PRODUCT)
        device = view.output_tensors[0].device.type
        refusal = _refuse(match) if device in devices else Unsupported("device", f"no packed products on {device}")
        return Supported() if refusal is None else refusal

    converted = Op(("aten._to_copy.default",), (Anything(_WEIGHT),), part=_CONVERSION)
    rights = {"": converted, "_turned": Op(_TURNS, (converted,), part=_TURN)}
    rights |= {f"_in_groups{name}": Op(_TURNS, (scaled,), part=_TURN) for name, scaled in _scaled()}
    for name, right in rights.items():
        plain = Op(("aten.mm.default",), (Anything("left"), right), part=_PRODUCT)
        added = Op(("aten.addmm.default",), (Anything("bias"), Anything("left"), right), part=_PRODUCT)
        yield Pattern(f"{PREFIX}{name}_product", plain, check, priced_as=_equal)
        yield Pattern(f"{PREFIX}{name}_product_bias", added, check, priced_as=_equal)
    packed = Op(("aten._weight_int4pack_mm_for_cpu.default",), (Anything("left"), Anything(_WEIGHT)), part=_PRODUCT)
    yield Pattern(f"{PREFIX}_int4_product", packed, _check_packed, priced_as=_equal_to_packed)


def _check_packed(match: Match) -> Verdict:
    """A rule lowers such a product; whether it pays is decided here, as for the other forms."""
    from mixbackend.backends.codegen.lower.judging import judge_op

    product = match.part(_PRODUCT)
    known = {item.name for item in product.inputs if item.role is InputRole.CONSTANT}
    operands = [product.argument(name) for name in ("mat2", "qScaleAndZeros")]
    if not all(isinstance(item, NodeRef) and item.name in known for item in operands):
        return _PACKED_ANEW
    return judge_op(product)


def _equal_to_packed(match: Match) -> OpView:
    """A product of float32 with a weight of 8 bits."""
    product = match.part(_PRODUCT)
    made, left, weight = product.output_tensors[0], product.argument("self"), product.argument("mat2")
    terms, columns = product.input_tensors[0].shape[-1], made.shape[-1]
    matrix = TensorMeta((terms, columns), (1, terms), torch.uint8, made.device)
    views = {item.name: item for item in product.inputs}
    assert isinstance(left, NodeRef) and isinstance(weight, NodeRef)
    inputs = (_in_float32(views[left.name]), replace(views[weight.name], meta=matrix))
    arguments = (("self", left), ("mat2", weight))
    node = replace(product.node, op="aten.mm.default", arguments=arguments, outputs=(_wide(made),))
    return replace(product, node=node, inputs=inputs)


def _scaled() -> Iterator[tuple[str, Op]]:
    """Weights in groups, before they are turned: scaled, and moved by a zero before that or not."""
    conversion = ("aten._to_copy.default",)
    zero = Anything(_ZERO, behind=(*conversion, "aten.reshape.default"))
    for name, codes in (
        ("", Op(conversion, (Anything(_WEIGHT),), part=_CONVERSION, reshaped=True)),
        ("_parts", _parts()),
    ):
        moved = Op(("aten.sub.Tensor",), (codes, zero), part=_MOVING, reshaped=True)
        for ending, inner in (("", codes), ("_from_zero", moved)):
            operands = (inner, Anything("scale"))
            scaled = Op(("aten.mul.Tensor",), operands, _SCALING, commutative=True, reshaped=True, behind=conversion)
            yield f"{name}{ending}", scaled


def _parts() -> Op:
    """Bits of bytes as ``graph.unpacked_codes`` writes them, and what is done with codes alone."""
    shifts = Op(("aten.arange.start_step",), (), part="shifts", reshaped=True)
    shifted = Op(("aten.bitwise_right_shift.Tensor",), (Anything(_WEIGHT), shifts), part=_UNPACKING)
    steps = ("aten._to_copy.default", "aten.sub.Tensor", "aten.add.Tensor")
    return Op(("aten.bitwise_and.Scalar",), (shifted,), part="masking", reshaped=True, behind=steps)


def _refuse(match: Match) -> Unsupported | None:
    weight = _weight(match)
    assert isinstance(weight.meta, TensorMeta)
    if weight.meta.dtype not in NARROW:
        return Unsupported("dtype", f"a weight of {weight.meta.dtype} as wider numbers")
    if not all(item.role is InputRole.CONSTANT for item in _weights(match)):
        return _PACKED_ANEW
    product = match.part(_PRODUCT)
    metas = (*product.input_tensors, *product.output_tensors)
    other = next((meta.dtype for meta in metas if meta.dtype not in _FLOATS), None)
    if other is not None:
        return Unsupported("dtype", f"a product of matrices of {other}")
    return None


def _weight(match: Match) -> InputView:
    return match.part(_UNPACKING if _UNPACKING in dict(match.parts) else _CONVERSION).inputs[0]


def _weights(match: Match) -> list[InputView]:
    """All tensors that a right matrix is made of."""
    parts = dict(match.parts)
    views = [
        *(parts[name] for name in (_CONVERSION, _UNPACKING, _SCALING, _MOVING) if name in parts),
        *match.through(_ZERO),
    ]
    return [item for view in views for item in view.inputs if item.name not in match.nodes]


def _equal(match: Match) -> OpView:
    """A product of float32 with the weight as it is stored."""
    product, weight = match.part(_PRODUCT), _weight(match)
    inside = match.part(_TURN if _TURN in dict(match.parts) else _CONVERSION).node.name
    made = product.output_tensors[0]
    turned = next(item.meta for item in product.inputs if item.name == inside)
    assert isinstance(turned, TensorMeta) and isinstance(weight.meta, TensorMeta)
    stored = replace(weight, name=inside, meta=replace(turned, dtype=weight.meta.dtype))
    inputs = tuple(stored if item.name == inside else _in_float32(item) for item in product.inputs)
    return replace(product, node=replace(product.node, outputs=(_wide(made),)), inputs=inputs)


def _in_float32(item: InputView) -> InputView:
    return replace(item, meta=_wide(item.meta)) if isinstance(item.meta, TensorMeta) else item


def _wide(meta: TensorMeta) -> TensorMeta:
    return replace(meta, dtype=torch.float32)
