"""Values of symbols, from the tensors and numbers that a region is called with.

Place: first step of both interpreters.
Input: declared inputs and actual ones. Output: the value of every symbol that sizes, strides and numbers are made of.
Invariants: what was declared and what came agree, or an error says how they differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from mixbackend.backends.codegen.interpret.indices import Value, evaluate_size
from mixbackend.backends.codegen.ir.stages import NumberInput, StridedInput
from mixbackend.contracts import IrError

Input = torch.Tensor | int | float


def solve_symbols(
    declared: Sequence[StridedInput | NumberInput], inputs: Sequence[Input], *, strides: bool = False
) -> dict[sympy.Symbol, Value]:
    """The value of every symbol.

    Args:
        declared: inputs of a graph or program.
        inputs: actual ones, in the same order.
        strides: whether the actual strides must be the declared ones (where the size is over 1).

    Raises:
        IrError: an input is not what was declared.
    """
    if len(declared) != len(inputs):
        raise IrError(f"{len(declared)} inputs are declared, {len(inputs)} were given")
    values: dict[sympy.Symbol, Value] = {}
    equations: list[tuple[sympy.Expr, int, str]] = []
    soft: list[tuple[sympy.Expr, int, str]] = []
    idle: list[tuple[sympy.Expr, int, str]] = []
    for item, actual in zip(declared, inputs, strict=True):
        if isinstance(item, NumberInput):
            values[item.symbol] = _number(item, actual)
            continue
        tensor = _tensor(item, actual)
        equations += [
            (size, n, f"a size of {item.name}") for size, n in zip(item.type.sizes, tensor.shape, strict=True)
        ]
        for stride, size, actual_stride in zip(item.strides, tensor.shape, tensor.stride(), strict=True):
            counts = size > 1 and tensor.numel() > 0
            (soft if counts else idle).append((stride, actual_stride, f"a stride of {item.name}"))
    _solve([*equations, *soft], values)
    # A stride along which there is one element may be anything; it is asked only for symbols that nothing else gives.
    for expression, actual_value, _ in idle:
        if expression.is_Symbol:
            values.setdefault(expression, actual_value)
    for expression, actual_value, what in [*equations, *soft] if strides else equations:
        _expect(expression, actual_value, what, values)
    return values


def _number(item: NumberInput, actual: Input) -> Value:
    if isinstance(actual, torch.Tensor):
        raise IrError(f"input {item.name} is declared as a number, a tensor was given")
    return int(actual) if item.symbol.is_integer else actual


def _tensor(item: StridedInput, actual: Input) -> torch.Tensor:
    if not isinstance(actual, torch.Tensor):
        raise IrError(f"input {item.name} is declared as a tensor, the number {actual} was given")
    if actual.dtype != item.type.dtype or actual.dim() != len(item.type.sizes):
        raise IrError(f"input {item.name} is declared as {item.type}, {actual.dtype}{list(actual.shape)} was given")
    return actual


def _solve(equations: Sequence[tuple[sympy.Expr, int, str]], values: dict[sympy.Symbol, Value]) -> None:
    """Find symbols from equations with one unknown that is in them linearly; plain symbols come first."""
    for expression, actual, _ in equations:
        if expression.is_Symbol:
            values.setdefault(expression, actual)
    for expression, actual, what in equations:
        unknown = expression.free_symbols - values.keys()
        if len(unknown) != 1:
            continue
        (symbol,) = unknown
        rest = sympy.expand(expression.subs({s: values[s] for s in expression.free_symbols - {symbol}}))
        factor = rest.coeff(symbol, 1)
        if not factor.is_Integer or (rest - factor * symbol).free_symbols:
            continue
        quotient = (actual - rest.subs(symbol, 0)) / factor
        if not quotient.is_Integer:
            raise IrError(f"{what} is declared as {expression}, it is {actual}: {symbol} would be {quotient}")
        values[symbol] = int(quotient)


def _expect(expression: sympy.Expr, actual: int, what: str, values: dict[sympy.Symbol, Value]) -> None:
    if expression.free_symbols - values.keys():
        return
    expected = evaluate_size(expression, values)
    if expected != actual:
        raise IrError(f"{what} is declared as {expression} = {expected}, it is {actual}")
