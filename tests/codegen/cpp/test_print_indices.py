"""Index expressions as C++ text, and how they move along the lanes of a vector."""

from __future__ import annotations

import pytest
import sympy
from printed_kernels import index, parameter

from mixbackend.backends.codegen.ir.indices import FloorDiv, Modulo
from mixbackend.backends.codegen.targets.cpp.indices import index_text, lane_step, vector_text
from mixbackend.backends.codegen.targets.cpp.literals import literal

i0, i1 = index(0), index(1)
p0 = parameter(0)


def _rank(expression: sympy.Expr) -> int:
    return max((int(str(symbol)[1:]) + 1 for symbol in expression.free_symbols if str(symbol)[0] == "i"), default=0)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (i1 + i0 * p0 - 3, "((p0 * i0) + i1 - 3)"),
        (p0 - i0 - 1, "(p0 - i0 - 1)"),
        (FloorDiv(i0, 7) * 2, "(2 * (i0 / 7))"),
        (Modulo(i0 - 3, 7), "remainder((i0 - 3), 7ll)"),
        (sympy.Min(64, p0 - 64 * i0), "minimum(64ll, (p0 - (64 * i0)))"),
        (p0**2 * i0, "((p0 * p0) * i0)"),
    ],
)
def test_scalar_text(expression: sympy.Expr, text: str) -> None:
    assert index_text(expression, str, _rank) == text


def test_other_functions_are_no_index() -> None:
    with pytest.raises(ValueError, match="no index expression"):
        index_text(sympy.sqrt(p0), str, _rank)
    with pytest.raises(ValueError, match="no index expression"):
        index_text(sympy.Abs(sympy.Symbol("k", integer=True)), str, _rank)


def test_vector_text_broadcasts_what_lanes_share() -> None:
    text = vector_text(i0 * p0 + FloorDiv(i1, 3), lambda s: "v" if s == i1 else "", _rank, str)
    assert text == "add(broadcast<i64>((p0 * i0)), floor_div(v, broadcast<i64>(3)))"


@pytest.mark.parametrize(
    ("expression", "step"),
    [
        (i0 * p0, 0),
        (i1 * p0 + i0, p0),
        (5 - i1, -1),
        (FloorDiv(i1, 32) * 7 + Modulo(i1, 32), 1),
        (FloorDiv(i1 + 16 * i0, 32), 0),
        (FloorDiv(i1, 24), None),
        (FloorDiv(i1 + 8, 32), None),
        (FloorDiv(2 * i1, 32), None),
        (FloorDiv(i1, p0), None),
        (Modulo(i1 + i0, 32), None),
        (i1 * i1, None),
        (sympy.Min(i1, p0), None),
    ],
)
def test_step_along_lanes(expression: sympy.Expr, step: sympy.Expr | int | None) -> None:
    assert lane_step(expression, i1) == step


def test_literals_have_the_value_of_their_type() -> None:
    import torch

    assert literal(0.1, torch.float32) == "0.10000000149011612f"
    assert literal(1e300, torch.float32) == "__builtin_inff()"
    assert literal(-float("inf"), torch.float64) == "-__builtin_inf()"
    assert literal(float("nan"), torch.float64) == '__builtin_nan("")'
    assert literal(-(2**63), torch.int64) == "(-9223372036854775807ll - 1)"
    assert literal(300, torch.uint8) == "44"
    assert literal(2, torch.bool) == "true"
