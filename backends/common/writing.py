"""Writes: which of them a region can have.

Place: asked in ``decline`` by backends that write into inputs, and again by codegen's ``lower_region``.
Invariants: what the graphs of AOTAutograd do, writing each mutated input once everything is computed, is never refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixbackend.contracts import WRITING, OpView, Unsupported


def refuse_writes(views: Iterable[OpView], outputs: Iterable[str] = ()) -> Unsupported | None:
    """A reason why ops cannot be one region, ``None`` if nothing speaks against it.

    Refused are writes into views of what the region itself makes, and reads of what was a view of anything before
    this was written into: whether it is a view or a copy may depend on sizes.

    Args:
        views: the ops in their order.
        outputs: names of the values that leave; views of inputs may.
    """
    views = tuple(views)
    if all(view.op not in WRITING for view in views):
        return None
    roots: dict[str, str] = {}
    made: set[str] = set()
    stale: set[str] = set()
    for view in views:
        name, alias = view.node.name, view.node.aliased()
        late = next((reference for reference in view.node.references() if reference in stale), None)
        if late is not None:
            return Unsupported("effect", f"{name} reads {late}, a view of what was written into")
        root = name if alias is None else roots.get(alias, alias)
        if view.op not in WRITING:
            made.add(name)
        elif root != alias and (root in made or alias in made):
            return Unsupported("effect", f"{name} writes into {alias}, a view")
        else:
            # What copies into an input return is this input; other names of a value are not kept up to date.
            others = (earlier for earlier in roots if earlier != root and roots[earlier] == root)
            stale.update(earlier for earlier in others if root in made or earlier in made)
        roots[name] = root
    late = next((output for output in outputs if output in stale and roots[output] in made), None)
    return None if late is None else Unsupported("effect", f"{late} leaves, a view of what was written into")
