"""Scalar formulas as they are written on paper, beyond what operators of ``Expr`` say.

Place: used by rules; above ``ir.scalar``.
Invariants: a plain number gets the compute type of the expressions beside it; nothing is simplified.
"""

from __future__ import annotations

import torch

from mixbackend.backends.codegen.ir.scalar import Expr, Term, apply, call, lifted


def exp(term: Expr) -> Expr:
    """The exponential function."""
    return call("exp", term)


def equal(left: Term, right: Term) -> Expr:
    """``left == right``; false for NaN."""
    return call("eq", left, right)


def where(condition: Expr, yes: Term, no: Term) -> Expr:
    """``yes`` where the condition holds, else ``no``; at most one of them a number."""
    if isinstance(yes, (int, float)):
        assert not isinstance(no, (int, float))
        return apply("where", condition, lifted(yes, no.dtype), no)
    return apply("where", condition, yes, lifted(no, yes.dtype))


def clamped(value: Expr, low: Term, high: Term) -> Expr:
    """Limited from below, then from above; NaN stays NaN."""
    return call("minimum", call("maximum", value, low), high)


def logistic(value: Expr, dtype: torch.dtype = torch.float32) -> Expr:
    """``1 / (1 + exp(-value))`` for results of a type; those of 16 bits hide what quick functions are off by."""
    return call("rough_sigmoid" if is_short(dtype) else "sigmoid", value)


def is_short(dtype: torch.dtype) -> bool:
    """Whether results are rounded to 16 bits."""
    return dtype in (torch.float16, torch.bfloat16)
