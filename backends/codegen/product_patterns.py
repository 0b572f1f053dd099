"""Patterns: a product whose right matrix is a quantised weight as wider numbers, as one label for the planner.

Place: ``Backend.patterns`` of targets with the template ``product``; ``schedule.packed_products`` packs the weight as
it is stored, so that the conversion costs nothing. Scales, one for each column, follow the product as any map does.
Form: ``mm(x, weight.to(x.dtype))`` and ``addmm`` likewise, where a transposition may follow the conversion.
Invariants: a match is accepted only if the weight is known when the region is bound, and if its numbers have 8 bits,
which all floats hold exactly.
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
_PRODUCT = "product"
_WEIGHT = "weight"
_TURNS = ("aten.t.default", "aten.permute.default", "aten.transpose.int")


@lru_cache(maxsize=8)
def product_patterns(devices: frozenset[str]) -> tuple[Pattern, ...]:
    """All forms, on devices whose target has the template."""
    return tuple(_all(devices))


def _all(devices: frozenset[str]) -> Iterator[Pattern]:
    def check(match: Match) -> Verdict:
        view = match.part(_PRODUCT)
        device = view.output_tensors[0].device.type
        refusal = _refuse(match) if device in devices else Unsupported("device", f"no packed products on {device}")
        return Supported() if refusal is None else refusal

    converted = Op(("aten._to_copy.default",), (Anything(_WEIGHT),), part=_CONVERSION)
    rights = {"": converted, "_turned": Op(_TURNS, (converted,), part="turn")}
    for name, right in rights.items():
        plain = Op(("aten.mm.default",), (Anything("left"), right), part=_PRODUCT)
        added = Op(("aten.addmm.default",), (Anything("bias"), Anything("left"), right), part=_PRODUCT)
        yield Pattern(f"{PREFIX}{name}_product", plain, check, priced_as=_equal)
        yield Pattern(f"{PREFIX}{name}_product_bias", added, check, priced_as=_equal)


def _refuse(match: Match) -> Unsupported | None:
    weight = _weight(match)
    assert isinstance(weight.meta, TensorMeta)
    if weight.meta.dtype not in NARROW:
        return Unsupported("dtype", f"a weight of {weight.meta.dtype} as wider numbers")
    if weight.role is not InputRole.CONSTANT:
        return Unsupported("declined", "the weight would be packed anew at each call")
    product = match.part(_PRODUCT)
    metas = (*product.input_tensors, *product.output_tensors)
    other = next((meta.dtype for meta in metas if meta.dtype not in _FLOATS), None)
    if other is not None:
        return Unsupported("dtype", f"a product of matrices of {other}")
    return None


def _weight(match: Match) -> InputView:
    return match.part(_CONVERSION).inputs[0]


def _equal(match: Match) -> OpView:
    """A product of float32 with the weight as it is stored."""
    product, weight = match.part(_PRODUCT), _weight(match)
    inside = match.part("turn" if "turn" in dict(match.parts) else _CONVERSION).node.name
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
