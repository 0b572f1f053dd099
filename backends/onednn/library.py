"""The library: which rule writes which op, and how matched patterns become one call.

Place: given to ``backends.common.library`` by the backend. Input: the planner's matches, by pattern name and nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx

from mixbackend.backends.common.library import Library, Scope
from mixbackend.backends.onednn.convolutions import write_combined_convolution, write_convolution
from mixbackend.backends.onednn.epilogues import Activation
from mixbackend.backends.onednn.patterns import FORM_OF, Form
from mixbackend.backends.onednn.products import (
    as_result_of,
    in_place,
    reshaped,
    write_addmm,
    write_bmm,
    write_combined_product,
    write_mm,
    write_product,
)
from mixbackend.contracts import RESHAPES
from mixbackend.contracts.describe_op import describe_op, operator_name

Node = torch.fx.Node

_PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default", "aten.convolution.default"})


def write_match(scope: Scope, pattern: str, matched: Sequence[Node]) -> str:
    """A matched pattern as one call of a kernel, and what has to happen to its result in place."""
    form = FORM_OF[pattern]
    product = next(node for node in matched if operator_name(node.target) in _PRODUCTS)
    scalars = [] if form.activation is None else _scalars(form.activation, matched)
    fused = form.activation is not None and form.activation.in_place is None
    text = _kernel(scope, form, product, matched, scalars if fused else [])
    if form.activation is not None and not fused:
        text = in_place(scope, text, form.activation, scalars)
    return reshaped(scope, text, matched)


def _kernel(scope: Scope, form: Form, product: Node, matched: Sequence[Node], scalars: list[Any]) -> str:
    convolves = operator_name(product.target) == "aten.convolution.default"
    if form.operation:
        other = _other(scope, form.operation, product, matched)
        if convolves:
            return write_combined_convolution(scope, product, form.operation, other, matched[-1])
        return write_combined_product(scope, product, form.operation, other)
    activation = None
    if form.activation is not None and form.activation.in_place is None:
        activation = (form.activation.fused, scalars, form.activation.algorithm)
    if convolves:
        return write_convolution(scope, product, activation, matched[-1])
    return write_product(scope, product, activation)


def _other(scope: Scope, operation: str, product: Node, matched: Sequence[Node]) -> str:
    """Text of the tensor that a product is combined with, in the shape of the product's result."""
    inside = set(matched)
    combination = next(node for node in matched if operator_name(node.target) == f"aten.{operation}.Tensor")
    other = next(node for node in combination.args[:2] if isinstance(node, Node) and node not in inside)
    text = scope.read(other)
    through = any(operator_name(node.target) in RESHAPES for node in matched)
    return as_result_of(scope, product, text) if through else text


def _scalars(activation: Activation, matched: Sequence[Node]) -> list[Any]:
    """Arguments of an activation, which its op carries; that op is the last of its match."""
    if not activation.parameters:
        return []
    arguments = dict(describe_op(matched[-1]).arguments)
    return [arguments[name] for name in activation.parameters]


_DENSE_PATTERNS = frozenset(name for name in FORM_OF if name.startswith("linear_"))

LIBRARY = Library(
    ops={
        "aten.mm.default": write_mm,
        "aten.addmm.default": write_addmm,
        "aten.bmm.default": write_bmm,
        "aten.convolution.default": write_convolution,
    },
    match=write_match,
    dense=frozenset({"aten.mm.default", "aten.bmm.default"}) | _DENSE_PATTERNS,
)
