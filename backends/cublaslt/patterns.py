"""Patterns: linear layers with an activation, as one label for the planner.

Place: ``Backend.patterns``. Between a layer and its activation there may be reshapes, as models fold batch and rows for
the product. The library has ReLU and the tanh form of GELU; exact GELU it has not.
Invariants: a match is accepted only if its product alone would be, and its bias is a row.
Costs: ``None``, the sum over the ops, where pointwise ops count with this backend's rate, which is that of epilogues;
the values between them are never written.
"""

from __future__ import annotations

from mixbackend.backends.common.library.trees import single, tanh_formula
from mixbackend.backends.cublaslt.support import judge, refuse_epilogue
from mixbackend.contracts import Match, Op, Pattern, Supported, Unsupported, Verdict

PRODUCT = "product"
"""Part name of the op with the kernel that does everything."""
GELU = frozenset({"linear_gelu_tanh", "linear_gelu_formula", "linear_gelu_formula_integer"})
"""Patterns that end in GELU; the other ends in ReLU."""

_LINEAR = Op(("aten.addmm.default",), part=PRODUCT, reshaped=True)


def _check(match: Match) -> Verdict:
    product = match.part(PRODUCT)
    verdict = judge(product)
    if isinstance(verdict, Unsupported):
        return verdict
    return refuse_epilogue(product) or Supported()


PATTERNS: tuple[Pattern, ...] = (
    Pattern("linear_relu", single("relu")(_LINEAR), _check),
    Pattern("linear_gelu_tanh", single("gelu", "tanh")(_LINEAR), _check),
    Pattern("linear_gelu_formula", tanh_formula(1.0)(_LINEAR), _check),
    Pattern("linear_gelu_formula_integer", tanh_formula(1)(_LINEAR), _check),
)
