"""What a library backend says about its kernels: one rule per operator and per pattern.

Place: written by the backend, read by ``writer``. A rule gets the node and a ``Scope`` and returns Python text of one
expression that computes the node's value; it asks the scope for the names of everything the text mentions.

Example::

    def product(scope: Scope, node: Node) -> str:
        left, right = node.args[:2]
        return f"{scope.object(torch.mm)}({scope.read(left)}, {scope.read(right)})"

    LIBRARY = Library({"aten.mm.default": product})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch.fx

from mixbackend.backends.common.library.scope import Scope

OpRule = Callable[[Scope, torch.fx.Node], str]
"""(scope, node) -> text of its value."""

MatchRule = Callable[[Scope, str, Sequence[torch.fx.Node]], str]
"""(scope, pattern name, matched nodes in graph order) -> text of the value of the last of them."""


@dataclass(frozen=True)
class Library:
    """The kernels of a backend.

    Attributes:
        ops: rules by full operator name; operators without one are called through torch's dispatcher.
        match: the rule of all patterns; ``None`` if the backend states none.
        dense: operators and patterns with a rule that always returns a fresh row-major tensor, whatever comes in.
    """

    ops: Mapping[str, OpRule] = field(default_factory=dict)
    match: MatchRule | None = None
    dense: frozenset[str] = frozenset()
