"""What every value of the intermediate representation has in common: its ``str`` is its text.

Place: base of the dataclasses of ``scalar``, ``stages``, ``kernel`` and ``program``. ``kernel_text`` registers the text
of each class with ``text_of``; the package's front imports it, so that no value can exist before its text.
"""

from __future__ import annotations

from functools import singledispatch


@singledispatch
def text_of(value: object) -> str:
    """Text of any value of the intermediate representation."""
    raise TypeError(f"no text is registered for values of {type(value).__qualname__}")


class Printed:
    """See the module's docstring."""

    __slots__ = ()

    def __str__(self) -> str:
        return text_of(self)
