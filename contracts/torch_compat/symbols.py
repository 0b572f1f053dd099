"""Symbolic sizes: their expressions, what is known of symbols, and how new ones are made.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mixbackend.contracts.torch_compat.late_modes import created_symbol
from mixbackend.contracts.torch_compat.tracing import is_fake

_BEYOND = 2**40
"""No tensor has so many elements."""


def symbolic_expression(size: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Expr:
    """The expression behind a symbolic number."""
    return size.node.expr


def size_expression(size: int | torch.SymInt) -> sympy.Expr:
    """The expression of a size, symbolic or not."""
    return symbolic_expression(size) if isinstance(size, torch.SymInt) else sympy.Integer(size)


def symbolic_hint(size: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """Its value in the captured run, ``None`` if it depends on data or is no number; adds no guard."""
    return _plain(size.node.hint) if size.node.has_hint() else None


def _plain(value: Any) -> Any:
    """A number; ``None`` for what stands for the lengths of a jagged tensor: it equals itself and is no number."""
    return value if isinstance(value, (int, float, bool, sympy.Integer)) else None


def symbolic_bounds(size: torch.SymInt) -> tuple[int, int | None]:
    """Inclusive bounds that always hold; ``None`` above if there is no bound, below then a number that no size or
    difference of sizes reaches. Adds no guard."""
    shape_env: ShapeEnv = size.node.shape_env
    bounds = shape_env.bound_sympy(size.node.expr)
    if bounds is None:
        # Torch knows none of what stands for the lengths of a jagged tensor.
        return -_BEYOND, None
    lower = int(bounds.lower) if bounds.lower.is_finite and bounds.lower > -_BEYOND else -_BEYOND
    unbounded = not bounds.upper.is_finite or bounds.upper > _BEYOND
    return lower, None if unbounded else int(bounds.upper)


def fresh_symbol(fake_mode: Any, name: str, hint: int, lower: int, upper: int | None) -> torch.SymInt:
    """A new symbolic integer of a fake mode with a value to assume and inclusive bounds that always hold."""
    from torch.utils._sympy.numbers import int_oo

    shape_env: ShapeEnv = fake_mode.shape_env
    symbol = created_symbol(shape_env, name, hint, lower > 0)
    shape_env.constrain_symbol_range(symbol, lower, int_oo if upper is None else upper)
    return shape_env.create_symintnode(symbol, hint=hint)  # type: ignore[return-value]


def symbolic_integer(fake_mode: Any, expression: sympy.Expr, hint: int | None) -> Any:
    """An expression over a fake mode's symbols as a symbolic integer."""
    return fake_mode.shape_env.create_symintnode(expression, hint=hint)


def assumptions(fake_mode: Any, bounds: Mapping[sympy.Symbol, tuple[int, int | None]]) -> tuple[sympy.Basic, ...]:
    """What was assumed about a fake mode's symbols and does not follow from these inclusive bounds.

    (torch's own filter uses bounds that the assumptions themselves have narrowed.)
    """
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    ranges = {symbol: ValueRanges(low, int_oo if high is None else high) for symbol, (low, high) in bounds.items()}
    always = ValueRanges(sympy.true, sympy.true)
    guards = dict.fromkeys(guard.expr for guard in fake_mode.shape_env.guards)
    return tuple(guard for guard in guards if bound_sympy(guard, ranges) != always)


def is_guarded(shape_env: ShapeEnv | None, guard: sympy.Basic) -> bool:
    """Whether something holds by what a shape environment knows of its symbols, its guards included; adds no guard."""
    return shape_env is not None and shape_env._maybe_evaluate_static(guard) == sympy.true


_SYMBOLIC_FUNCTIONS = (
    "FloorDiv",
    "ModularIndexing",
    "Mod",
    "PythonMod",
    "CeilDiv",
    "CleanDiv",
    "CeilToInt",
    "FloorToInt",
    "TruncToInt",
    "RoundToInt",
    "ToFloat",
    "IntTrueDiv",
    "FloatTrueDiv",
    "PowByNatural",
    "FloatPow",
    "Max",
    "Min",
    "LShift",
    "RShift",
)


def symbolic_functions() -> dict[str, Any]:
    """Torch's own sympy functions that appear in sizes, by class name; those that this torch has."""
    from torch.utils._sympy import functions

    found = {name: getattr(functions, name, None) for name in _SYMBOLIC_FUNCTIONS}
    return {name: function for name, function in found.items() if function is not None}


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """What is known of one symbol of a captured graph.

    Attributes:
        kind: ``size`` (positive, backed), ``integer`` (any sign, backed) or ``unbacked`` (depends on data).
        lower, upper: inclusive bounds, ``None`` if unbounded.
        hint: its value in the captured run.
    """

    kind: str
    lower: int | None
    upper: int | None
    hint: int | None


def symbol_facts(shape_env: ShapeEnv, symbol: sympy.Symbol) -> SymbolFacts:
    """Kind, range and hint of a symbol; adds no guard."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    bounds = shape_env.var_to_range.get(symbol)
    # Torch's integer infinity counts as a finite integer in sympy: ask for the class of plain numbers.
    lower = int(bounds.lower) if bounds is not None and isinstance(bounds.lower, sympy.Integer) else None
    upper = int(bounds.upper) if bounds is not None and isinstance(bounds.upper, sympy.Integer) else None
    if symbol_is_type(symbol, SymT.UNBACKED_INT):
        return SymbolFacts("unbacked", lower, upper, None)
    values = getattr(shape_env, "backed_var_to_val", None)
    hint = _plain((shape_env.var_to_val if values is None else values).get(symbol))
    return SymbolFacts("size" if symbol.is_positive else "integer", lower, upper, None if hint is None else int(hint))


def declare_symbol(shape_env: ShapeEnv, name: str, facts: SymbolFacts) -> sympy.Symbol:
    """A new symbol of a shape environment, with the given range and hint."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges

    if facts.kind == "unbacked":
        symbol = shape_env.create_unbacked_symint().node.expr
        shape_env.pending_fresh_unbacked_symbols.clear()
    else:
        hint = _stand_in(facts) if facts.hint is None else facts.hint
        symbol = created_symbol(shape_env, f"mixbackend_{name}", hint, facts.kind == "size")
    lower = -int_oo if facts.lower is None else facts.lower
    upper = int_oo if facts.upper is None else facts.upper
    shape_env.var_to_range[symbol] = ValueRanges(lower, upper)
    return symbol


def _stand_in(facts: SymbolFacts) -> int:
    """A value inside the range, for symbols that come without a hint."""
    lower = 2 if facts.lower is None else max(facts.lower, 2)
    return lower if facts.upper is None else min(lower, facts.upper)


def symbolic_number(shape_env: ShapeEnv, expression: sympy.Expr) -> Any:
    """The ``SymInt`` of an integer expression over symbols of a shape environment; a plain ``int`` for numbers."""
    return shape_env.create_symintnode(expression, hint=None)


def shape_env_of(value: object) -> Any:
    """The shape environment that a fake tensor or symbolic number belongs to, ``None`` for plain values."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.shape_env
    mode = getattr(value, "fake_mode", None) if is_fake(value) else None
    return None if mode is None else mode.shape_env
