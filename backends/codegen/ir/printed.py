"""What every value of the intermediate representation has in common: its ``str`` is its text.

Place: base of the dataclasses of ``scalar``, ``stages``, ``kernel`` and ``program``; the text itself is made by
``text`` and ``kernel_text``.
"""

from __future__ import annotations


class Printed:
    """See the module's docstring."""

    __slots__ = ()

    def __str__(self) -> str:
        # The printers know every class and so can only be imported after them.
        from mixbackend.backends.codegen.ir.kernel_text import text_of

        return text_of(self)
