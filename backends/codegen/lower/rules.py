"""The table of lowering rules: operator -> function from tensors to tensors.

Place: filled by the rule modules of this package when ``table`` imports them; read by ``lowering`` and ``judging``.
A rule is called with the ``Lowering`` and the op's arguments by schema name: tensors as ``Tensor``, symbolic sizes as
sympy expressions, everything else as it is. It returns a ``Tensor``, a tuple of them (``None`` for an output that
cannot be read), or raises ``RefusedError``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mixbackend.contracts.verdict import RefusalCode, Unsupported

Rule = Callable[..., Any]


class RefusedError(Exception):
    """A rule does not cover this use of its op; becomes the verdict."""

    def __init__(self, code: RefusalCode, detail: str) -> None:
        super().__init__(detail)
        self.verdict = Unsupported(code, detail)


class RuleTable:
    """Rules by full operator name; each name once."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}

    def rule(self, *operators: str) -> Callable[[Rule], Rule]:
        """Decorator: register a rule for operators such as ``aten.add.Tensor``.

        Raises:
            ValueError: an operator has a rule already.
        """

        def register(function: Rule) -> Rule:
            for name in operators:
                if name in self._rules:
                    raise ValueError(f"{name} has two rules: {self._rules[name].__qualname__}, {function.__qualname__}")
                self._rules[name] = function
            return function

        return register

    def get(self, operator: str) -> Rule | None:
        """The rule of an operator, ``None`` if it has none."""
        return self._rules.get(operator)

    def names(self) -> tuple[str, ...]:
        """All operators with a rule, sorted."""
        return tuple(sorted(self._rules))


RULES = RuleTable()
rule = RULES.rule
