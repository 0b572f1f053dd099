"""Sizes that may be symbolic, and questions about them that never add a guard.

Place: inside every tensor meta that a backend sees.
Input: sympy expressions and hints taken from the captured graph. Output: plain values.
Invariants: a symbolic size cannot be turned into an ``int`` or a ``bool`` by accident: that would bake one run's value
into a decision (torch would add a guard for it). Ask ``known(condition)`` and handle ``"unknown"``.
Non-goals: proving things. An answer is "yes" or "no" only if ranges or plain algebra show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn, Union

import sympy

Truth = Literal["yes", "no", "unknown"]
OfAnySign = Annotated[int, "of any sign"]
"""A difference of sizes, which may be negative, and what is known of it; all other numbers of contracts are amounts."""


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """A size that is known only when the graph runs.

    Attributes:
        expression: integer expression over the graph's symbols, for instance ``8*s0``.
        hint: its value in the run that was captured; ``None`` for sizes that depend on data.
        lower, upper: inclusive bounds that always hold; ``upper`` is ``None`` if there is no bound.
    """

    expression: sympy.Expr
    hint: OfAnySign | None = None
    lower: OfAnySign = 0
    upper: OfAnySign | None = None

    def __int__(self) -> NoReturn:
        raise TypeError(f"size {self} is symbolic: use known(condition), or hint_of(size) for an estimate")

    def __bool__(self) -> NoReturn:
        self.__int__()

    def __index__(self) -> NoReturn:
        self.__int__()

    def __str__(self) -> str:
        return str(self.expression)


Size = Union[int, SymbolicSize]


@dataclass(frozen=True, slots=True)
class Condition:
    """A question about one size: ``equal``, ``other_than``, ``at_least``, ``at_most`` or ``multiple_of`` a
    constant.

    Also the form of a region's run-time preconditions, which the stitched callable dispatches on.
    """

    size: Size
    relation: Literal["equal", "other_than", "at_least", "at_most", "multiple_of"]
    value: OfAnySign

    def holds(self, size: int) -> bool:
        """Whether a concrete size satisfies the condition."""
        return _RELATIONS[self.relation](size, self.value)

    def __str__(self) -> str:
        return f"{self.size} {self.relation.replace('_', ' ')} {self.value}"


_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "equal": lambda size, value: size == value,
    "other_than": lambda size, value: size != value,
    "at_least": lambda size, value: size >= value,
    "at_most": lambda size, value: size <= value,
    "multiple_of": lambda size, value: size % value == 0,
}


def known(condition: Condition) -> Truth:
    """Whether a condition holds for every value its size can take; never adds a guard."""
    size, value = condition.size, condition.value
    if not isinstance(size, SymbolicSize):
        return "yes" if condition.holds(size) else "no"
    lower, upper = size.lower, size.upper
    if condition.relation == "at_least":
        return _by_range(lower >= value, upper is not None and upper < value)
    if condition.relation == "at_most":
        return _by_range(upper is not None and upper <= value, lower > value)
    if condition.relation in ("equal", "other_than"):
        always, never = lower == value == upper, lower > value or (upper is not None and upper < value)
        return _by_range(always, never) if condition.relation == "equal" else _by_range(never, always)
    return "yes" if sympy.Mod(size.expression, value) == 0 else "unknown"


def _by_range(always: bool, never: bool) -> Truth:
    if always:
        return "yes"
    return "no" if never else "unknown"


def hint_of(size: Size, default: int = 64) -> int:
    """The captured run's value of a size: right for cost estimates, never for decisions about correctness."""
    if not isinstance(size, SymbolicSize):
        return size
    return default if size.hint is None else size.hint


def is_symbolic(size: object) -> bool:
    """Whether a size is known only at run time."""
    return isinstance(size, SymbolicSize)
