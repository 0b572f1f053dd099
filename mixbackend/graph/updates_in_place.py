"""Updates in place: rows of an input that a graph renews are written there, and the others are not copied.

Place: the last pass of ``passes.CAPTURED``. Input and output: the fx graph, changed in place.
Functionalisation turns ``cache.index_copy_(2, position, keys)`` into a copy of the whole cache that holds the new
rows. All later ops read this copy, and it is written back at the end::

    new = index_copy(cache, 2, position, keys); y = f(new); copy_(cache, new)
        -> index_copy_(cache, 2, position, keys); y = f(cache)

Invariants: nothing reads what the input held before, or any view of it, after the update; neither the input nor the
copy shares memory with a result; sizes, strides and type of both are equal.
Non-goals: values that are not made of the input itself (statistics, rolled windows), updates of updates.
"""

from __future__ import annotations

import torch
import torch.fx

from mixbackend.contracts import OpTag
from mixbackend.contracts.describe_op import describe_op, value_meta
from mixbackend.graph.aliases import sharing_with_outputs

aten = torch.ops.aten
_COPY = aten.copy_.default
_IN_PLACE = {aten.index_copy.default: aten.index_copy_.default, aten.index_put.default: aten.index_put_.default}
"""Operators that renew some elements of their first argument."""


def applies(graph_module: torch.fx.GraphModule) -> bool:
    """Whether something is written into an input that one of the operators made."""
    return any(_update_of(copy) is not None for copy in _copies(graph_module.graph))


def update_in_place(graph_module: torch.fx.GraphModule) -> int:
    """Write where nothing needs the old value; returns how many updates became so."""
    graph = graph_module.graph
    position = {node: place for place, node in enumerate(graph.nodes)}
    leaving = sharing_with_outputs(graph)
    changed = 0
    for copy in _copies(graph):
        new = _update_of(copy)
        if new is None or leaving & {new, copy, copy.args[0]} or not _is_last_to_read(new, copy, position):
            continue
        _write(graph, new, copy)
        changed += 1
    return changed


def _copies(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return list(graph.find_nodes(op="call_function", target=_COPY))


def _update_of(copy: torch.fx.Node) -> torch.fx.Node | None:
    """The operator with the result that a copy writes into the input that it was made of."""
    target, new = copy.args[:2]
    if not isinstance(target, torch.fx.Node) or not isinstance(new, torch.fx.Node) or copy.users:
        return None
    is_update = target.op == "placeholder" and new.target in _IN_PLACE and new.args[0] is target
    if not is_update or target in _inputs_beside_the_first(new):
        return None
    return new if value_meta(target.meta.get("val")) == value_meta(new.meta.get("val")) else None


def _inputs_beside_the_first(node: torch.fx.Node) -> set[torch.fx.Node]:
    found: set[torch.fx.Node] = set()
    torch.fx.node.map_arg((node.args[1:], node.kwargs), found.add)
    return found


def _is_last_to_read(new: torch.fx.Node, copy: torch.fx.Node, position: dict[torch.fx.Node, int]) -> bool:
    """Whether the old value of the input is not read once the new one is there, through whatever view."""
    names, seen = [copy.args[0]], set()
    sources = _inputs_beside_the_first(new)
    while names:
        name = names.pop()
        assert isinstance(name, torch.fx.Node)
        for user in name.users:
            if user in seen or user in (new, copy):
                continue
            seen.add(user)
            tags = describe_op(user).tags if user.op == "call_function" else frozenset({OpTag.EFFECT})
            if tags & {OpTag.EFFECT, OpTag.MUTATES, OpTag.HIGHER_ORDER} or position[user] > position[new]:
                return False
            if OpTag.VIEW in tags or describe_op(user).op == "getitem":
                names.append(user)
                if user in sources:
                    return False
    return True


def _write(graph: torch.fx.Graph, new: torch.fx.Node, copy: torch.fx.Node) -> None:
    target = copy.args[0]
    assert isinstance(target, torch.fx.Node)
    with graph.inserting_before(new):
        update = graph.call_function(_IN_PLACE[new.target], new.args, new.kwargs)  # type: ignore[index]
    update.meta = {**new.meta, "val": target.meta["val"]}
    graph.erase_node(copy)
    new.replace_all_uses_with(target)
    graph.erase_node(new)
