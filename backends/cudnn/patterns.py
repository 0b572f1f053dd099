"""Patterns: convolutions with what follows them, as one label for the planner.

Place: ``Backend.patterns``, together with those of attention that is written out. ``convolution_relu`` and
``convolution_add_relu`` are one kernel each, bias included.
Invariants: a match is accepted only if its convolution alone would be, and if nothing in it changes shape or type.
Costs: ``None``, the sum over the ops, where pointwise ops count with this backend's rate, which is that of epilogues;
the values between them are never written.
"""

from __future__ import annotations

from mixbackend.backends.common.attention_patterns import attention_patterns
from mixbackend.backends.common.gpu_library import not_on_gpu
from mixbackend.backends.cudnn.support import CONVOLUTION, judge, refuse_fusion
from mixbackend.contracts import Any as Anything
from mixbackend.contracts import Literal, Match, Op, Pattern, Supported, TensorMeta, Unsupported, Verdict

PRODUCT = "product"
OTHER = "other"
_SUM = "sum"
_RELU = ("aten.relu.default",)
_ADD = ("aten.add.Tensor",)


def _check(match: Match) -> Verdict:
    parts = dict(match.parts)
    product = parts[PRODUCT]
    verdict = judge(product)
    if isinstance(verdict, Unsupported):
        return verdict
    refusal = refuse_fusion(product)
    if refusal is None and _SUM in parts:
        refusal = _unsuited_operand(match)
    return refusal or Supported()


def _unsuited_operand(match: Match) -> Unsupported | None:
    sum_, made = match.part(_SUM), match.part(PRODUCT).output_tensors[0]
    name = dict(match.bindings)[OTHER]
    meta = next(item.meta for item in sum_.inputs if item.name == name)
    if not isinstance(meta, TensorMeta) or meta.device.type != "cuda" or meta.dtype is not made.dtype:
        return Unsupported("dtype", f"{meta} meets {made}")
    if meta.shape != made.shape:
        return Unsupported("layout", f"{meta} is not of the shape of {made}")
    return None


_CONVOLUTION = Op((CONVOLUTION,), part=PRODUCT)
_ADDED = Op(_ADD, (_CONVOLUTION, Anything(OTHER), Literal(1)), part=_SUM, commutative=True)

_CONVOLUTIONS: tuple[Pattern, ...] = (
    Pattern("convolution_relu", Op(_RELU, (_CONVOLUTION,)), _check),
    Pattern("convolution_add_relu", Op(_RELU, (_ADDED,)), _check),
)

PATTERNS: tuple[Pattern, ...] = (*_CONVOLUTIONS, *attention_patterns(not_on_gpu))
