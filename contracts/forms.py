"""Forms: whether a value is what a type hint says.

Place: below ``contracts.asked``, which holds answers of plug-ins against the contract. Input: a value and the hint of
where it goes. Output: what is wrong in words, ``""`` if nothing is.
Invariants: nothing of the value is called. A number is never negative and never NaN: all of the contract's
are amounts, but for those of type ``OfAnySign``.
Non-goals: hints that the contract does not use; what is not known here fits.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mixbackend.contracts.sizes import OfAnySign

_LONGEST = 120
"""Characters of a foreign value that are shown."""


def misfit(value: object, hint: Any) -> str:
    """What is wrong with a value where a type hint says what belongs there; ``""`` if it fits."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == OfAnySign:
        return _misfit_of_number(value, int)
    if origin in (Union, types.UnionType):
        return _misfit_of_union(value, arguments)
    if origin is Literal:
        known = any(type(value) is type(item) and value == item for item in arguments)
        return "" if known else f"{shown(value)} is none of {', '.join(map(repr, arguments))}"
    if origin in (tuple, frozenset):
        return _misfit_of_items(value, origin, arguments)
    if origin is not None and issubclass(origin, Callable):  # type: ignore[arg-type]
        return "" if callable(value) else f"{shown(value)} cannot be called"
    if not isinstance(hint, type) or origin is not None:
        return ""
    if hint in (bool, int, float):
        return _misfit_of_number(value, hint) or _misfit_of_amount(value)
    if not isinstance(value, hint):
        return f"{shown(value)} instead of {_article(hint.__name__)}"
    return _misfit_of_fields(value, hint) if is_dataclass(hint) else ""


def shown(value: object) -> str:
    """A foreign value in words; short, and whatever its ``repr`` does."""
    try:
        text = repr(value)
    except Exception:  # the value is foreign, and so is what it does when it is shown
        text = object.__repr__(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _misfit_of_union(value: object, choices: tuple[Any, ...]) -> str:
    near = ""
    for choice in choices:
        known = isinstance(choice, type)
        if known and choice is not float and not isinstance(value, choice):
            continue
        wrong = misfit(value, choice)
        if not wrong:
            return ""
        # Of the right class, but with a wrong field: that says more than the list of classes.
        near = near or (wrong if known and isinstance(value, choice) else "")
    names = (choice.__name__ if isinstance(choice, type) else str(choice) for choice in choices)
    return near or f"{shown(value)} instead of {' or '.join(names).replace('NoneType', 'None')}"


def _misfit_of_items(value: object, origin: type, arguments: tuple[Any, ...]) -> str:
    if not isinstance(value, origin):
        return f"{shown(value)} instead of {_article(origin.__name__)}"
    items: list[object] = list(value)  # type: ignore[call-overload]
    if origin is frozenset or (len(arguments) == 2 and arguments[1] is Ellipsis):
        hints = [arguments[0]] * len(items)
    else:
        hints = list(arguments)
    if len(hints) != len(items):
        return f"{shown(value)} has {len(items)} items instead of {len(hints)}"
    return next(filter(None, (misfit(item, hint) for item, hint in zip(items, hints, strict=True))), "")


def _misfit_of_number(value: object, hint: type) -> str:
    allowed = (int, float) if hint is float else hint
    if not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool):
        return f"{shown(value)} instead of {_article(hint.__name__)}"
    return ""


def _misfit_of_amount(value: object) -> str:
    amount = float(value)  # type: ignore[arg-type]
    return f"{shown(value)} is no amount" if math.isnan(amount) or amount < 0.0 else ""


def _misfit_of_fields(value: object, hint: type) -> str:
    hints = _hints_of(hint)
    for item in fields(hint):  # type: ignore[arg-type]
        wrong = misfit(getattr(value, item.name), hints[item.name])
        if wrong:
            return f"{hint.__name__}.{item.name}: {wrong}"
    return ""


@cache
def _hints_of(hint: type) -> dict[str, Any]:
    return get_type_hints(hint, include_extras=True)
