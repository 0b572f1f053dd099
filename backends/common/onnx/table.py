"""The table: ATen operator -> what is taken of it, and how it is written as ONNX.

Place: filled by the family modules beside this one; read by backends for verdicts and by ``region`` for emission.
Invariants: one entry says both, so a claim without an emitter cannot exist; an operator is entered once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mixbackend.backends.common.onnx.call import Call, Emitted
from mixbackend.contracts import OpRule

Emitter = Callable[[Call], Emitted]


@dataclass(frozen=True, slots=True)
class Lowering:
    """One entry: the rule for verdicts and the emitter."""

    rule: OpRule
    emit: Emitter


TABLE: dict[str, Lowering] = {}
"""By full operator name."""


def enter(operators: str, rule: OpRule, emit: Emitter) -> None:
    """Enter one emitter for operators separated by blanks; names without a namespace are ATen's."""
    for operator in operators.split():
        name = f"aten.{operator}" if "." in operator else f"aten.{operator}.default"
        if name in TABLE:
            raise ValueError(f"{name} was entered twice")
        TABLE[name] = Lowering(rule, emit)


def lowers(operators: str, rule: OpRule) -> Callable[[Emitter], Emitter]:
    """Decorator form of ``enter``."""

    def decorate(emit: Emitter) -> Emitter:
        enter(operators, rule, emit)
        return emit

    return decorate
