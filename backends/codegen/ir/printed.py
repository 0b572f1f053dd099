"""What every value of the intermediate representation has in common: its ``str`` is its text.

Place: base of the dataclasses of ``scalar``, ``stages``, ``kernel`` and ``program``. ``kernel_text`` registers the text
of each class with ``text_of``. It is loaded when a text is first wanted: what runs compiled regions wants none.
"""

from __future__ import annotations

from functools import singledispatch
from importlib import import_module

_TEXTS = "mixbackend.backends.codegen.ir.kernel_text"


@singledispatch
def text_of(value: object) -> str:
    """Text of any value of the intermediate representation."""
    import_module(_TEXTS)
    found = text_of.dispatch(type(value))
    if found is text_of.dispatch(object):
        raise TypeError(f"no text is registered for values of {type(value).__qualname__}")
    return found(value)


class Printed:
    """See the module's docstring."""

    __slots__ = ()

    def __str__(self) -> str:
        return text_of(self)
