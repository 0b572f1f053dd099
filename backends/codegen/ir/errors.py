"""Problems of the intermediate representation: all are collected, one error shows them, each with its text.

Place: used by the checkers.
"""

from __future__ import annotations

from typing import Any

from mixbackend.contracts import IrError

_LINES = 12
_COLUMNS = 160


class Problems:
    """What is wrong, so far."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], None] = {}

    def add(self, message: str, excerpt: Any) -> None:
        """Note a problem once.

        Args:
            excerpt: the part of the program that has it; its text is shown.
        """
        self._found[(message, str(excerpt))] = None

    def expect(self, holds: bool, message: str, excerpt: Any) -> bool:
        """Note a problem unless a condition holds; the condition again."""
        if not holds:
            self.add(message, excerpt)
        return holds

    def raise_all(self, of: str) -> None:
        """Raise one error for all problems, if there are any.

        Raises:
            IrError: there are.
        """
        if not self._found:
            return
        count = f"{len(self._found)} problem{'s' if len(self._found) > 1 else ''}"
        shown = [f"  {message}\n{_clipped(excerpt)}" for message, excerpt in self._found]
        raise IrError("\n".join([f"{count} in a {of}", *shown]))


def _clipped(excerpt: str) -> str:
    lines = excerpt.split("\n")
    kept = [f"    | {line[:_COLUMNS]}" for line in lines[:_LINES]]
    return "\n".join([*kept, *(["    | ..."] if len(lines) > _LINES else [])])
