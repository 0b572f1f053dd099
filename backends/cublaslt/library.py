"""The library: how matched patterns become one call; products alone are called as they are.

Place: given to ``backends.common.library`` by the backend. Input: the planner's matches, by pattern name and nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from mixbackend.backends.common.library import Library, Scope
from mixbackend.backends.cublaslt.patterns import GELU
from mixbackend.contracts import RESHAPES
from mixbackend.contracts.describe_op import operator_name

Node = torch.fx.Node


def write_match(scope: Scope, pattern: str, matched: Sequence[Node]) -> str:
    """One call of the product with its epilogue, then the reshapes of the match."""
    product = next(node for node in matched if operator_name(node.target) == "aten.addmm.default")
    call = scope.object(torch.ops.aten._addmm_activation.default, "product")
    operands = ", ".join(scope.text(argument) for argument in product.args[:3])
    text = f"{call}({operands}, use_gelu={pattern in GELU})"
    for node in matched:
        name = operator_name(node.target)
        if name in RESHAPES:
            text = f"{text}.{name.split('.')[1]}({', '.join(scope.text(argument) for argument in node.args[1:])})"
    return text


LIBRARY = Library(
    match=write_match,
    dense=frozenset({"aten.mm.default", "aten.addmm.default", "aten.bmm.default", "linear_relu", *GELU}),
)
