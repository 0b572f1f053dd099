"""Sharing: an expression used more than once at a point gets a name.

Place: last change that ``build`` makes to statements. Input, output: statements of one body.
Before and after::

    y[i] = exp(x[i]) * (1 - exp(x[i]))      ->      let v0 = exp(x[i]); y[i] = v0 * (1 - v0)

Invariants: what reads a buffer that the same statements store keeps its place, so that it sees what it saw.
Names count on from a given number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mixbackend.backends.codegen.ir.grammar import expressions_of, map_expressions, rewrite, walk
from mixbackend.backends.codegen.ir.kernel import Let, Statement, Store
from mixbackend.backends.codegen.ir.scalar import Apply, Expr, Local, Read


def share_common(statements: Iterable[Statement], fresh: Callable[[], str]) -> tuple[Statement, ...]:
    """Statements in which every computed value is written once.

    Args:
        fresh: gives unused names.
    """
    statements = tuple(statements)
    return _Sharer(_shared_nodes(statements), fresh).run(statements)


def _shared_nodes(statements: tuple[Statement, ...]) -> frozenset[Expr]:
    """Nodes with several uses that stay what they are throughout."""
    nodes = list(walk(*statements))
    uses = Counter(part for node in (*statements, *nodes) for part in expressions_of(node))
    stored = {item.buffer for item in statements if isinstance(item, Store)}
    changing: set[Expr] = set()
    for node in nodes:
        if (isinstance(node, Read) and node.buffer in stored) or not changing.isdisjoint(expressions_of(node)):
            changing.add(node)
    return frozenset(
        node for node, count in uses.items() if count > 1 and isinstance(node, (Apply, Read)) and node not in changing
    )


@dataclass
class _Sharer:
    """Names shared nodes from the smallest up; ``named`` has them as they read once their parts have names."""

    shared: frozenset[Expr]
    fresh: Callable[[], str]
    named: dict[Expr, Expr] = field(default_factory=dict)
    done: set[Expr] = field(default_factory=set)
    result: list[Statement] = field(default_factory=list)

    def run(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """Name a shared node before the first statement that uses it."""
        for item in statements:
            own = item.value if isinstance(item, Let) else None
            for node in walk(item):
                if node in self.shared and node not in self.done and node != own:
                    self._name(node, self.fresh())
            if isinstance(item, Let) and own in self.shared and own not in self.done:
                self._name(item.value, item.name)
            else:
                self.result.append(map_expressions(item, self._with_names))
        return tuple(self.result)

    def _name(self, node: Expr, name: str) -> None:
        value = self._with_names(node)
        self.done.add(node)
        self.named[value] = Local(node.dtype, name)
        self.result.append(Let(name, value))

    def _with_names(self, root: Expr) -> Expr:
        return rewrite(root, lambda node: self.named.get(node, node))
