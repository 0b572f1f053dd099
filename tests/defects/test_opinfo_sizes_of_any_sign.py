"""Sizes of any sign: what a backend tells of a difference of sizes may be negative; amounts may not.

Before: "SymbolicSize.lower: -4611686018427387904 is no amount" refused what inductor told of several sizes.
"""

from __future__ import annotations

import sympy

from mixbackend.contracts import Condition, SymbolicSize
from mixbackend.contracts.forms import misfit


def test_differences_of_sizes_are_no_misfit() -> None:
    difference = SymbolicSize(sympy.Symbol("s0") - sympy.Symbol("s1"), -3, -(2**62), -1)
    hint = tuple[Condition, ...]
    assert misfit((Condition(difference, "at_least", -2),), hint) == ""
    assert "lower" in misfit((Condition(SymbolicSize(sympy.Symbol("s0"), lower="0"), "equal", 1),), hint)  # type: ignore
    assert "value" in misfit((Condition(difference, "equal", 1.5),), hint)  # type: ignore[arg-type]


def test_amounts_are_not_negative() -> None:
    assert misfit(-1, int) and misfit(-1.0, float | None) and misfit(float("nan"), float)
    assert not misfit(0, int)
