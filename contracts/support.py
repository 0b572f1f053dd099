"""Declarative support tables: the common case of ``Backend.judge``.

Place: used by backends that can say what they take as a table ``operator -> rule``.
Invariants: every refusal names the failing test with what was seen and what is needed.

Example::

    TABLE = SupportTable({
        "aten.relu.default": OpRule(dtypes=FLOATS),
        "aten.cat.default": OpRule(dtypes=FLOATS | INTEGERS, maximum_rank=6),
        "aten.gelu.default": OpRule(arguments=(one_of("approximate", "none"),)),
    })
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from mixbackend.contracts.ops import WRITING, Argument, OpTag, OpView
from mixbackend.contracts.verdict import Supported, Unsupported, Verdict

FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64})
INTEGERS = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})
BOOLEANS = frozenset({torch.bool})

ArgumentTest = Callable[[OpView], Unsupported | None]
"""Returns a refusal, or ``None`` to accept."""


def one_of(argument: str, *allowed: Argument) -> ArgumentTest:
    """Accept only these values of an argument."""

    def test(view: OpView) -> Unsupported | None:
        value = view.argument(argument)
        if value in allowed:
            return None
        return Unsupported("argument", f"{argument}={value!r}, needed one of {allowed!r}")

    return test


@dataclass(frozen=True, slots=True)
class OpRule:
    """What a backend takes of one operator.

    Attributes:
        dtypes: allowed for every tensor input and output; ``None`` allows all that the table allows.
        ranks: inclusive bounds on the rank of every tensor.
        dynamic: whether symbolic sizes are fine.
        arguments: further tests.
    """

    dtypes: frozenset[torch.dtype] | None = None
    ranks: tuple[int, int] = (0, 8)
    dynamic: bool = True
    arguments: tuple[ArgumentTest, ...] = ()


_REFUSED_TAGS = (
    (OpTag.HIGHER_ORDER, "higher-order", "carries subgraphs"),
    (OpTag.RANDOM, "random", "draws from torch's random stream"),
    (OpTag.MUTATES, "effect", "writes into an input"),
    (OpTag.COLLECTIVE, "effect", "is a collective"),
    (OpTag.EFFECT, "effect", "has a side effect"),
    (OpTag.UNINITIALIZED, "effect", "returns uninitialised memory"),
    (OpTag.DATA_DEPENDENT, "data-dependent", "its output shape depends on values"),
)


def refuse_special(
    view: OpView, *, writes_inputs: bool = False, takes_whole: frozenset[str] = frozenset()
) -> Unsupported | None:
    """The refusal of ops that only a backend with eager's semantics may run; ``None`` for ordinary ops.

    Args:
        writes_inputs: let operators of ``WRITING`` pass, for backends with the trait of that name.
        takes_whole: let these higher-order operators pass, likewise.
    """
    for tag, code, detail in _REFUSED_TAGS:
        if writes_inputs and tag is OpTag.MUTATES and view.op in WRITING:
            continue
        if tag is OpTag.HIGHER_ORDER and view.op in takes_whole:
            continue
        if tag in view.node.tags:
            return Unsupported(code, f"{view.op} {detail}")  # type: ignore[arg-type]
    return None


@dataclass(frozen=True)
class SupportTable:
    """Operators a backend takes, and under which conditions.

    Attributes:
        rules: by full operator name.
        dtypes: allowed where a rule does not say otherwise.
        devices: device types it serves.
    """

    rules: Mapping[str, OpRule]
    dtypes: frozenset[torch.dtype] = FLOATS | INTEGERS | BOOLEANS
    devices: frozenset[str] = field(default=frozenset({"cpu"}))

    def judge(self, view: OpView) -> Verdict:
        """Supported, or the first failing test."""
        special = refuse_special(view)
        if special is not None:
            return special
        rule = self.rules.get(view.op)
        if rule is None:
            return Unsupported("unknown-op", f"no rule for {view.op}")
        return self._tensors(view, rule) or self._arguments(view, rule) or Supported()

    def _tensors(self, view: OpView, rule: OpRule) -> Unsupported | None:
        allowed = self.dtypes if rule.dtypes is None else rule.dtypes
        low, high = rule.ranks
        for meta in (*view.input_tensors, *view.output_tensors):
            if meta.device.type not in self.devices:
                return Unsupported("device", f"{meta} is not on {', '.join(sorted(self.devices))}")
            if meta.dtype not in allowed:
                return Unsupported("dtype", f"{meta.dtype} in {view.op}")
            if not low <= meta.rank <= high:
                return Unsupported("rank", f"rank {meta.rank}, needed {low} to {high}")
            if meta.dynamic and not rule.dynamic:
                return Unsupported("dynamic-shape", f"{meta} has symbolic sizes")
        return None

    def _arguments(self, view: OpView, rule: OpRule) -> Unsupported | None:
        for test in rule.arguments:
            refusal = test(view)
            if refusal is not None:
                return refusal
        return None
