"""Patterns: attention written out as products of matrices and a softmax, as one label for the planner.

Place: ``Backend.patterns`` of targets with the template ``attention``; ``lower.written_attention`` lowers what matched.
Form: ``bmm(softmax(bmm(query, keys) * scale + mask + mask), values)``, with and without a scale and one mask or both;
between its parts there may be reshapes, and after the softmax the copy and the expansion to its own sizes that dropout
and ``matmul`` leave.
Invariants: a match is accepted only if everything has one type, and the last two dimensions are queries and keys from
the first product to the second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

import torch

from mixbackend.contracts import Any as Anything
from mixbackend.contracts import Literal, Match, Op, OpView, Pattern, Supported, TensorMeta, Unsupported, Verdict

_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_PRODUCT = "aten.bmm.default"
_SOFTMAX = ("aten._softmax.default", "aten._safe_softmax.default")


def _scores(masks: int, scaled: bool) -> Op:
    inner = Op((_PRODUCT,), (Anything("query"), Anything("keys")), part="scores", reshaped=True)
    if scaled:
        inner = Op(("aten.mul.Tensor", "aten.div.Tensor"), (inner,), part="scaling", reshaped=True)
    for number in range(masks):
        operands = (inner, Anything(f"mask{number}"), Literal(1))
        inner = Op(("aten.add.Tensor",), operands, part=f"masking{number}", commutative=True, reshaped=True)
    return inner


def _weights(scores: Op, copied: bool, expanded: bool) -> Op:
    inner = Op(_SOFTMAX, (scores,), part="softmax", reshaped=True)
    if copied:
        inner = Op(("aten.clone.default",), (inner,), part="copy", reshaped=True)
    return Op(("aten.expand.default",), (inner,), part="expansion", reshaped=True) if expanded else inner


@lru_cache(maxsize=8)
def attention_patterns(devices: frozenset[str]) -> tuple[Pattern, ...]:
    """All forms, on devices with a target that has the template."""
    return tuple(_all(devices))


def _all(devices: frozenset[str]) -> Iterator[Pattern]:
    def check(match: Match) -> Verdict:
        metas = [meta for _, view in match.parts for meta in view.output_tensors]
        elsewhere = next((meta for meta in metas if meta.device.type not in devices), None)
        return _check(match) if elsewhere is None else Unsupported("device", f"no attention on {elsewhere.device.type}")

    for masks, scaled, copied, expanded in itertools.product(range(3), (False, True), (False, True), (False, True)):
        weights = _weights(_scores(masks, scaled), copied, expanded)
        words = [f"masks{masks}", *["scaled"] * scaled, *["copied"] * copied, *["expanded"] * expanded]
        root = Op((_PRODUCT,), (weights, Anything("values")), part="result")
        yield Pattern("_".join(["attention", *words]), root, check)


def _check(match: Match) -> Verdict:
    parts = dict(match.parts)
    refusal = _refuse_types(parts) or _refuse_softmax(parts["softmax"]) or _refuse_sizes(parts)
    if refusal is None and "scaling" in parts:
        refusal = _refuse_scaling(parts["scaling"])
    return Supported() if refusal is None else refusal


def _refuse_types(parts: dict[str, OpView]) -> Unsupported | None:
    metas = [meta for view in parts.values() for meta in (*view.input_tensors, *view.output_tensors)]
    types = {meta.dtype for meta in metas}
    if len(types) != 1 or types.isdisjoint(_TYPES):
        return Unsupported("dtype", f"attention of {', '.join(sorted(map(str, types)))}")
    if any(size == 0 for meta in metas for size in meta.shape):
        return Unsupported("argument", "attention of nothing")
    return None


def _refuse_softmax(view: OpView) -> Unsupported | None:
    rank = view.output_tensors[0].rank
    if view.argument("dim") not in (-1, rank - 1):
        return Unsupported("argument", f"a softmax over dimension {view.argument('dim')} of {rank}")
    return None


def _refuse_sizes(parts: dict[str, OpView]) -> Unsupported | None:
    scores = parts["scores"].output_tensors[0]
    for name, view in parts.items():
        if name == "result":
            continue
        made: TensorMeta = view.output_tensors[0]
        if made.rank < 3 or made.shape[-2:] != scores.shape[-2:] or made.elements() != scores.elements():
            return Unsupported("layout", f"scores {scores} become {made}")
    return None


def _refuse_scaling(view: OpView) -> Unsupported | None:
    factor = view.argument("other")
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not math.isfinite(factor):
        return Unsupported("argument", f"scores times {factor}, which is no known number")
    if factor == 0 and view.op == "aten.div.Tensor":
        return Unsupported("argument", "scores divided by zero")
    return None
