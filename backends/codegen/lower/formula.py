"""Scalar formulas as they are written on paper: operators on expressions and plain numbers.

Place: used by rules; above ``ir.scalar``.
Invariants: a plain number gets the compute type of the expressions beside it; nothing is simplified.
"""

from __future__ import annotations

from typing import Union

import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply

Term = Union[Expr, int, float, bool]


def call(op: str, *terms: Term) -> Expr:
    """A scalar operator on expressions and numbers, at least one of them an expression."""
    dtype = next(term.dtype for term in reversed(terms) if not isinstance(term, (int, float)))
    return apply(op, *(_lifted(term, dtype) for term in terms))


def _lifted(term: Term, dtype: torch.dtype) -> Expr:
    if not isinstance(term, (int, float)):
        return term
    return Constant(dtype, float(term) if dtype.is_floating_point else term)


def add(left: Term, right: Term) -> Expr:
    """``left + right``"""
    return call("add", left, right)


def sub(left: Term, right: Term) -> Expr:
    """``left - right``"""
    return call("sub", left, right)


def mul(left: Term, right: Term) -> Expr:
    """``left * right``"""
    return call("mul", left, right)


def div(left: Term, right: Term) -> Expr:
    """``left / right`` of floating values."""
    return call("div", left, right)


def neg(term: Expr) -> Expr:
    """``-term``"""
    return call("neg", term)


def exp(term: Expr) -> Expr:
    """The exponential function."""
    return call("exp", term)


def less(left: Term, right: Term) -> Expr:
    """``left < right``; false for NaN."""
    return call("lt", left, right)


def at_most(left: Term, right: Term) -> Expr:
    """``left <= right``; false for NaN."""
    return call("le", left, right)


def greater(left: Term, right: Term) -> Expr:
    """``left > right``; false for NaN."""
    return call("gt", left, right)


def at_least(left: Term, right: Term) -> Expr:
    """``left >= right``; false for NaN."""
    return call("ge", left, right)


def equal(left: Term, right: Term) -> Expr:
    """``left == right``; false for NaN."""
    return call("eq", left, right)


def both(left: Expr, right: Expr) -> Expr:
    """Conjunction of conditions."""
    return apply("and", left, right)


def either(left: Expr, right: Expr) -> Expr:
    """Disjunction of conditions."""
    return apply("or", left, right)


def where(condition: Expr, yes: Term, no: Term) -> Expr:
    """``yes`` where the condition holds, else ``no``; at most one of them a number."""
    if isinstance(yes, (int, float)):
        assert not isinstance(no, (int, float))
        return apply("where", condition, _lifted(yes, no.dtype), no)
    return apply("where", condition, yes, _lifted(no, yes.dtype))


def clamped(value: Expr, low: Term, high: Term) -> Expr:
    """Limited from below, then from above; NaN stays NaN."""
    return call("minimum", call("maximum", value, low), high)


def logistic(value: Expr, dtype: torch.dtype = torch.float32) -> Expr:
    """``1 / (1 + exp(-value))`` for results of a type; those of 16 bits hide what quick functions are off by."""
    return call("rough_sigmoid" if is_short(dtype) else "sigmoid", value)


def is_short(dtype: torch.dtype) -> bool:
    """Whether results are rounded to 16 bits."""
    return dtype in (torch.float16, torch.bfloat16)
