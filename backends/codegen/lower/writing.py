"""Writes into inputs: which of them a region can have.

Place: asked by the backend's ``decline`` and again by ``lower_region``; the rule of ``copy_`` is in ``conversion``.
Invariants: what the graphs of AOTAutograd do, writing each mutated input once everything is computed, is never refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from mixbackend.contracts import COPY_INTO, OpView, Unsupported


def refuse_writes(views: Iterable[OpView]) -> Unsupported | None:
    """A reason why the ops of a region cannot be one, given in their order; ``None`` if nothing speaks against it.

    Refused are writes into something that the region itself makes or views, and what was a view of an input before the
    input was written and is read after it: whether it is a view or a copy may depend on sizes.
    """
    roots: dict[str, str] = {}
    made: set[str] = set()
    stale: set[str] = set()
    for view in views:
        name, alias = view.node.name, view.node.aliased()
        for reference in view.node.references():
            if reference in stale:
                return Unsupported("effect", f"{name} reads {reference}, a view of what was written into")
        root = roots.get(alias, alias) if alias is not None else name
        if view.op == COPY_INTO and alias in made:
            return Unsupported("effect", f"{name} writes into {alias}, which is no input of the region")
        if view.op == COPY_INTO:
            stale.update(earlier for earlier in made if roots[earlier] == root)
        else:
            made.add(name)
        roots[name] = root
    return None
