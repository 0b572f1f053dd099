"""Patterns: products and convolutions with what follows them, as one label for the planner.

Place: ``Backend.patterns``. A pattern's name says its parts: ``linear_gelu``, ``convolution_add_relu``.
Between a linear layer and its epilogue there may be reshapes, as models fold batch and rows for the product.
Invariants: a match is accepted only if its product alone would be, and if nothing in it changes shape or type.
Costs: ``None``, the sum over the ops, where pointwise ops count with this backend's rate, which is that of epilogues;
the values between them are never written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mixbackend.backends.common.library.trees import STAGE
from mixbackend.backends.onednn.epilogues import ACTIVATIONS, OPERATIONS, Activation
from mixbackend.backends.onednn.support import bias_is_row, judge, overlaps
from mixbackend.contracts import Any as Anything
from mixbackend.contracts import Literal, Match, Op, OpView, Pattern, Supported, TensorMeta, Unsupported, Verdict

PRODUCT = "product"
"""Part name of the op with the kernel that does everything."""
_COMBINATION = "combination"
_OTHER = "other"

_KINDS: dict[str, Op] = {
    "linear": Op(("aten.mm.default", "aten.addmm.default"), part=PRODUCT, reshaped=True),
    "convolution": Op(("aten.convolution.default",), part=PRODUCT),
}


@dataclass(frozen=True)
class Form:
    """What a pattern's name stands for.

    Attributes:
        operation: with a second tensor, ``""`` if there is none.
        activation: what comes last, ``None`` if nothing does.
    """

    operation: str = ""
    activation: Activation | None = None


def _combined(kind: Op, operation: str) -> Op:
    alpha = (Literal(1),) if operation == "add" else ()
    operands = (kind, Anything(_OTHER), *alpha)
    return Op((f"aten.{operation}.Tensor",), operands, part=_COMBINATION, commutative=True)


def _check_activation(activation: Activation | None) -> Callable[[Match], Verdict]:
    def check(match: Match) -> Verdict:
        parts = dict(match.parts)
        refusal = _unsuited_product(parts[PRODUCT], combined=_COMBINATION in parts)
        if refusal is None and _COMBINATION in parts:
            refusal = _unsuited_operand(parts[_COMBINATION], dict(match.bindings)[_OTHER], parts[PRODUCT])
        if refusal is None and activation is not None and activation.check is not None:
            refusal = activation.check(parts[STAGE])
        return Supported() if refusal is None else refusal

    return check


def _unsuited_product(view: OpView, combined: bool) -> Unsupported | None:
    verdict = judge(view)
    if isinstance(verdict, Unsupported):
        return verdict
    if view.op == "aten.addmm.default" and not bias_is_row(view):
        return Unsupported("argument", "the bias is a matrix, which takes the place of an epilogue")
    if combined and view.has_argument("transposed") and view.argument("transposed") is not False:
        return Unsupported("argument", "a transposed convolution has no second tensor")
    return None


def _unsuited_operand(combination: OpView, other: str, product: OpView) -> Unsupported | None:
    result, made = combination.output_tensors[0], product.output_tensors[0]
    meta = next(item.meta for item in combination.inputs if item.name == other)
    if not isinstance(meta, TensorMeta) or meta.dtype is not made.dtype or result.dtype is not made.dtype:
        return Unsupported("dtype", f"{meta} meets {made.dtype}")
    if meta.shape != result.shape or meta.device != made.device:
        return Unsupported("layout", f"{meta} is not of the shape of {result}")
    if result.elements() != made.elements():
        return Unsupported("layout", f"{made} is broadcast to {result}")
    if overlaps(meta):
        return Unsupported("layout", f"{meta} overlaps itself")
    return None


def _all() -> tuple[tuple[Pattern, Form], ...]:
    found = []
    for kind, product in _KINDS.items():
        for activation in ACTIVATIONS:
            name = f"{kind}_{activation.name}"
            pattern = Pattern(name, activation.tree(product), _check_activation(activation))
            found.append((pattern, Form(activation=activation)))
        for operation in OPERATIONS:
            tree = _combined(product, operation)
            found.append((Pattern(f"{kind}_{operation}", tree, _check_activation(None)), Form(operation)))
        relu = next(item for item in ACTIVATIONS if item.name == "relu")
        tree = relu.tree(_combined(product, "add"))
        found.append((Pattern(f"{kind}_add_relu", tree, _check_activation(relu)), Form("add", relu)))
    return tuple(found)


_FORMS = _all()
PATTERNS: tuple[Pattern, ...] = tuple(pattern for pattern, _ in _FORMS)
FORM_OF: dict[str, Form] = {pattern.name: form for pattern, form in _FORMS}
