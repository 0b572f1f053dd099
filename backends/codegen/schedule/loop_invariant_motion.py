"""Loop-invariant motion: what is expensive and the same for all values of a loop is computed once, before it.

Place: in ``build``, after loops are tiled and vectors chosen. Input, output: a draft.
Before and after::

    for c: y[c] = x[c] / sqrt(v)      ->      t[0] = sqrt(v);  for c: y[c] = x[c] / t[0]

An expression that depends on some loops of its nest goes into a nest over these, into scratch with a value for each.
Invariants: only what reads nothing that the nest itself stores. A plain read that stays the same throughout a loop is
the target's to keep in a register.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import sympy

from mixbackend.backends.codegen.ir.grammar import expressions_of, loops_of, map_expressions, rewrite, walk
from mixbackend.backends.codegen.ir.indices import flatten
from mixbackend.backends.codegen.ir.kernel import KernelLoop, Nest, Scratch, Store
from mixbackend.backends.codegen.ir.scalar import SCALAR_OPS, Apply, Expr, Local, Read
from mixbackend.backends.codegen.schedule.draft import Draft, indices_of, largest_extent, points_of
from mixbackend.backends.codegen.schedule.hints import Hints, estimate

LEAST_COST = 4.0
"""Cost of an expression (see ``ScalarOp.cost``) from which it is worth memory of its own: a division."""

PREFIX = "%hoisted"
"""Of the names of scratch made here; no graph node is called so."""

LEAST_COST_OF_VECTORS = 8.0
"""Cost of all of an expression from which a vector of values is worth reading back."""

LEAST_REPEATS = 4
MOST_ELEMENTS = 4096


def hoist_invariants(draft: Draft, hints: Hints) -> Draft:
    """Move expensive invariant expressions into nests before."""
    names = (f"{PREFIX}{number}" for number in itertools.count())
    scratch, nests, dtypes = list(draft.scratch), [], dict(draft.dtypes)
    for nest in draft.nests:
        hoister = _Hoister(nest, hints, names)
        changed = hoister.run()
        nests += [*hoister.before(), changed]
        scratch += hoister.scratch
        dtypes.update({item.name: item.dtype for item in hoister.scratch})
    return replace(draft, nests=tuple(nests), scratch=tuple(scratch), dtypes=dtypes)


def is_hoisted(nest: Nest) -> bool:
    """Whether a nest was made here."""
    return all(isinstance(item, Store) and item.buffer.startswith(PREFIX) for item in nest.body)


@dataclass
class _Hoister:
    """Works on one nest."""

    nest: Nest
    hints: Hints
    names: Iterator[str]
    stores: dict[tuple[KernelLoop, ...], list[Store]] = field(default_factory=dict)
    scratch: list[Scratch] = field(default_factory=list)

    def run(self) -> Nest:
        """The nest with reads of what was moved before it."""
        if not loops_of(self.nest):
            return self.nest
        roots = [root for item in self.nest.body for root in expressions_of(item)]
        found = dict.fromkeys(node for root in roots for node in self._outermost(root))
        replaced: dict[Expr, Expr] = {}

        def exchanged(root: Expr) -> Expr:
            return rewrite(root, lambda node: replaced.get(node, node))

        # What is part of another goes first, and is read by the other.
        for node in sorted(found, key=lambda item: sum(1 for _ in walk(item))):
            smaller = exchanged(node)
            if smaller not in replaced.values():
                replaced[smaller] = self._moved(smaller)
        if not replaced:
            return self.nest
        return replace(self.nest, body=tuple(map_expressions(item, exchanged) for item in self.nest.body))

    def before(self) -> list[Nest]:
        """Nests that compute what was moved; those of fewer loops first, for they are read by the others."""
        return [Nest(loops, (), tuple(self.stores[loops])) for loops in sorted(self.stores, key=len)]

    def _outermost(self, root: Expr) -> Iterator[Expr]:
        """The largest expressions below a root that can go, each once."""
        pending, seen = [root], {root}
        while pending:
            node = pending.pop()
            if self._can_go(node):
                yield node
                continue
            fresh = [part for part in expressions_of(node) if part not in seen]
            seen.update(fresh)
            pending.extend(fresh)

    def _can_go(self, node: Expr) -> bool:
        if not isinstance(node, Apply) or not self._pays(node):
            return False
        stored = {item.buffer for item in self.nest.body if isinstance(item, Store)}
        parts = tuple(walk(node))
        return not any(isinstance(part, Local) or (isinstance(part, Read) and part.buffer in stored) for part in parts)

    def _pays(self, node: Apply) -> bool:
        stay = self._loops(node)
        others = [loop for loop in loops_of(self.nest) if loop not in stay]
        if points_of(others, self.hints) < LEAST_REPEATS:
            return False
        elements = sympy.Mul(*map(largest_extent, stay))
        if not elements.is_Integer or estimate(elements, self.hints) > MOST_ELEMENTS:
            return False
        costs = [SCALAR_OPS[part.op].cost for part in walk(node) if isinstance(part, Apply)]
        # What differs from lane to lane is a vector read afterwards; what does not, targets keep in registers if cheap.
        differs = any(loop.mode == "vector" for loop in stay)
        return sum(costs) >= LEAST_COST_OF_VECTORS if differs else max(costs) >= LEAST_COST

    def _loops(self, node: Expr) -> tuple[KernelLoop, ...]:
        used = indices_of(node)
        return tuple(loop for loop in loops_of(self.nest) if loop.index in used)

    def _moved(self, node: Expr) -> Expr:
        """Compute a node in a nest before, and read it."""
        loops = tuple(replace(loop, mode="serial") for loop in self._loops(node))
        sizes = tuple(map(largest_extent, loops))
        offset = flatten([loop.index for loop in loops], sizes)
        made = Scratch(next(self.names), node.dtype, sympy.Mul(*sizes))
        self.scratch.append(made)
        self.stores.setdefault(loops, []).append(Store(made.name, offset, node))
        return Read(node.dtype, made.name, offset)
