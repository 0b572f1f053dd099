"""The only door to torch's private names.

Place: imported by whoever needs something that torch does not promise to keep.
Invariants: no other module of the project imports a name with a leading underscore from torch, or from a module whose
path has one; ``tests/test_torch_compat.py`` exercises every name here, so a new torch release is this file's work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

# --- operators -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SchemaArgument:
    """One argument of an operator's schema."""

    name: str
    has_default: bool
    default: Any
    keyword_only: bool


def is_operator(target: object) -> bool:
    """Whether an fx target is one overload of a torch operator."""
    return isinstance(target, torch._ops.OpOverload)


def is_higher_order(target: object) -> bool:
    """Whether an fx target is a higher-order operator (cond, while, flex attention, ...)."""
    return isinstance(target, torch._ops.HigherOrderOperator)


def schema_arguments(operator: Any) -> tuple[SchemaArgument, ...]:
    """The arguments of an operator overload, in schema order."""
    return tuple(
        SchemaArgument(
            argument.name,
            argument.has_default_value(),
            argument.default_value if argument.has_default_value() else None,
            argument.kwarg_only,
        )
        for argument in operator._schema.arguments
    )


def is_mutating(operator: Any) -> bool:
    """Whether an operator overload writes into an argument."""
    return bool(operator._schema.is_mutable)


def returns_nothing(operator: Any) -> bool:
    """Whether an operator overload has no result."""
    return not operator._schema.returns


# --- symbolic sizes --------------------------------------------------------------------------------------------------


def symbolic_expression(size: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Expr:
    """The expression behind a symbolic number."""
    return size.node.expr


def symbolic_hint(size: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """Its value in the captured run, ``None`` if it depends on data; adds no guard."""
    return size.node.hint if size.node.has_hint() else None


def symbolic_bounds(size: torch.SymInt) -> tuple[int, int | None]:
    """Inclusive bounds that always hold; ``None`` above if there is no bound. Adds no guard."""
    shape_env: ShapeEnv = size.node.shape_env
    bounds = shape_env.bound_sympy(size.node.expr)
    lower = int(bounds.lower) if bounds.lower.is_finite and bounds.lower > 0 else 0
    unbounded = not bounds.upper.is_finite or bounds.upper > 2**40
    return lower, None if unbounded else int(bounds.upper)


# --- dispatch modes --------------------------------------------------------------------------------------------------


def without_dispatch_modes() -> Any:
    """Context in which no fake-tensor or proxy mode is active: real tensors may be touched."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def walk_metadata(node: torch.fx.Node) -> Iterator[tuple[str, Any]]:
    """(path, class) of the modules an fx node ran in, outermost first; forward modules for backward nodes."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    yield from stack.values()
