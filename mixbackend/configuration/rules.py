"""Rules: which backend the user wants where.

Place: part of ``Config``; becomes ``contracts.Preference`` values, terms of the partitioner's energy.
Invariants: rules are tried in the order they are written, the first that matches a node decides; what a rule may and
may not combine is held by ``checks``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import PrivateAttr

from mixbackend.configuration.fields import DeviceType, DtypeNames, FrozenModel, Positive, Text
from mixbackend.contracts.preferences import NodeMatch, Preference

DEFAULT_FACTOR = 0.8

ACTIONS = ("prefer", "require", "forbid")


class RuleMatch(FrozenModel):
    """Which ops a rule is about. All keys given must match; `{}` matches every op."""

    op: Text | None = None
    """Operator, shell-style pattern: `aten.convolution`, `aten.add.*`. Without overload it means every overload."""

    module: Text | None = None
    """Path of the module that runs the op, or of one around it, shell-style pattern: `encoder.layer.*.attention`."""

    module_class: Text | None = None
    """Class name of that module, shell-style pattern: `BertSelfAttention`."""

    pattern: Text | None = None
    """Name of a backend's multi-op pattern that the op is part of."""

    phase: Literal["inference", "forward", "backward"] | None = None
    """`forward` and `backward` are the two graphs of a training step; `inference` runs without gradients."""

    dtype: DtypeNames = ()
    """A dtype or several, of which the op's first output must have one: `float16`, `[float16, bfloat16]`."""

    device: DeviceType | None = None
    """Device type: `cpu`, `cuda`."""


class Rule(FrozenModel):
    """One wish. Exactly one of `prefer`, `require` and `forbid` names a backend."""

    match: RuleMatch
    """Which ops."""

    prefer: Text | None = None
    """Multiply this backend's cost by `factor` here."""

    require: Text | None = None
    """Only this backend here. It is an error if it cannot be used on this machine."""

    forbid: Text | None = None
    """Never this backend here."""

    factor: Positive | None = None
    """With `prefer` only, default 0.8. Below 1 makes the backend more likely, above 1 less."""

    _origin: str = PrivateAttr(default="")

    @property
    def origin(self) -> str:
        """Where it was written, ``prefs.yaml:7``; ``""`` if unknown. Not part of the value."""
        return self._origin

    def at(self, origin: str) -> Rule:
        """The same rule, written elsewhere."""
        copy = self.model_copy()
        copy._origin = origin
        return copy

    def preference(self) -> Preference:
        """The rule as the planner reads it."""
        match = self.match
        where = NodeMatch(
            op=match.op or "",
            module=match.module or "",
            module_class=match.module_class or "",
            pattern=match.pattern or "",
            phase=match.phase,
            dtypes=match.dtype,
            device=match.device or "",
        )
        factor = DEFAULT_FACTOR if self.factor is None else self.factor
        if self.prefer is not None:
            return Preference(where, "prefer", self.prefer, factor, self.origin)
        if self.require is not None:
            return Preference(where, "require", self.require, origin=self.origin)
        if self.forbid is not None:
            return Preference(where, "forbid", self.forbid, origin=self.origin)
        raise ValueError("a rule needs one of prefer, require and forbid")
