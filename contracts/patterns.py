"""Patterns: several ops that a backend takes as one.

Place: stated by backends, matched by the partitioner on the planning-level graph; a match becomes a label.
Form: a tree of ``Op`` and ``Any`` with named parts. ``Any`` with one name used twice must bind the same value, and
``Op`` with one ``part`` used twice must be the same node, so trees describe graphs too.

Example: ``x * sigmoid(x)``::

    SILU = Pattern(
        name="silu",
        root=Op(("aten.mul.Tensor",), (Any("x"), Op(("aten.sigmoid.default",), (Any("x"),))), commutative=True),
    )
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Union

from mixbackend.contracts.ops import Argument, OpView
from mixbackend.contracts.verdict import Supported, Verdict

RESHAPES: frozenset[str] = frozenset(
    {"aten.reshape.default", "aten.unsqueeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default"}
)
"""Ops that keep all elements of one value in row-major order: what is done point by point may be done before them."""


@dataclass(frozen=True, slots=True)
class Any:
    """Matches any tensor value and binds it to ``name``; the same name must bind the same value everywhere.

    Attributes:
        name: of the value.
        behind: ops that the value may go through before the match uses it: conversions, copies, numbers as factors.
            They become nodes of the match (``Match.through``), as many as nothing else needs; the value is what they
            start from. Views must keep the row-major order; those in front of the first other op stay outside.
    """

    name: str
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Literal:
    """Matches an argument that is not a tensor, by equality."""

    value: Argument


@dataclass(frozen=True, slots=True)
class Op:
    """Matches one op.

    Attributes:
        ops: full operator names, any of which matches.
        operands: patterns of its leading arguments in schema order; further arguments are free (use ``check``).
        part: name under which the matched node is known to ``check`` and ``may_escape``.
        commutative: try the first two operands in both orders, with each order of commutative ops inside them.
        reshaped: whether its value may go through ops of ``RESHAPES`` before the match uses it. Those become nodes of
            the match without a part, so nothing else may need their results. Never for the root of a pattern.
        behind: further ops of one tensor that its value may go through in the same way, see ``Match.through``.
    """

    ops: tuple[str, ...]
    operands: tuple[Operand, ...] = ()
    part: str = ""
    commutative: bool = False
    reshaped: bool = False
    behind: tuple[str, ...] = ()


Operand = Union[Op, Any, Literal]


@dataclass(frozen=True, slots=True)
class Match:
    """One place where a pattern fits.

    Attributes:
        pattern: its name.
        nodes: names of the matched nodes in graph order; the last is the root.
        parts: (part name, view of its node).
        bindings: (name of an ``Any``, name of the value it bound).
        passed: (name of a part or of an ``Any``, views of the ops that its value went through, the last one first).
    """

    pattern: str
    nodes: tuple[str, ...]
    parts: tuple[tuple[str, OpView], ...] = ()
    bindings: tuple[tuple[str, str], ...] = ()
    passed: tuple[tuple[str, tuple[OpView, ...]], ...] = ()

    @property
    def root(self) -> str:
        """Name of the node that computes the pattern's result."""
        return self.nodes[-1]

    def part(self, name: str) -> OpView:
        """The view of a named part."""
        return dict(self.parts)[name]

    def through(self, name: str) -> tuple[OpView, ...]:
        """Ops that the value of a part or of an ``Any`` went through before the match used it, the last one first."""
        return dict(self.passed).get(name, ())


def _accept(match: Match) -> Verdict:
    return Supported()


def _no_cost(match: Match) -> float | None:
    return None


def _no_equal(match: Match) -> OpView | None:
    return None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A claim on several ops at once.

    Attributes:
        name: unique within the backend.
        root: the tree, from the result backwards.
        check: accepts or refuses a match, with a reason.
        may_escape: parts with values that may be used outside the match; all others must have no other consumer.
        cost: seconds of the whole match, ``None`` for the sum over its ops.
        priced_as: where there is no such cost, one op that takes as long as the match, with the match's inputs: the
            backend's rates for it are the price. ``None`` for the sum over the match's ops.
    """

    name: str
    root: Op
    check: Callable[[Match], Verdict] = field(default=_accept)
    may_escape: frozenset[str] = frozenset()
    cost: Callable[[Match], float | None] = field(default=_no_cost)
    priced_as: Callable[[Match], OpView | None] = field(default=_no_equal)
