"""Bodies: the subgraphs of higher-order ops as graphs of their own, and the graph with compiled ones in their place.

Place: before a captured graph is prepared. ``compile.driver`` compiles what is found here as it compiles any captured
graph, bodies inside of bodies first.
Input: a captured graph. Output: ``SubgraphUse`` values, one for each distinct subgraph; the graph once more.
Torch's implementation of the op stays in charge: it evaluates the condition, counts the turns, cuts the slices.
Invariants: the captured graph is only read. A subgraph that several ops name is one; so are two of equal text. An
operand that is a weight wherever a body is called is a weight of the body.
Non-goals: attention with functions of its own, which is claimed whole; scans in any order, which torch runs on slices
of any length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from mixbackend.contracts import InputRole, RegionTextError
from mixbackend.contracts.compiled_body import CompiledBody, traced_layout
from mixbackend.contracts.torch_compat import is_higher_order
from mixbackend.graph.copies import copy_module
from mixbackend.graph.describe import PlaceholderRole
from mixbackend.graph.identity import Captured

Operands = Sequence[Any]
Calls = list[tuple[Any, Operands]]
"""The subgraphs that an op names, and what each is called with; ``None`` for what the op makes of its operands."""

_CALLS: Mapping[str, Callable[..., Calls]] = {
    "invoke_subgraph": lambda body, name, *operands: [(body, operands)],
    "cond": lambda predicate, true, false, operands=(): [(true, operands), (false, operands)],
    "while_loop": lambda *arguments: _loop(*arguments),
    "while_loop_stack_output": lambda *arguments: _loop(*arguments),
    "scan": lambda body, carried, slices, others=(): [(body, (*_made(carried), *_made(slices), *others))],
    "map_impl": lambda body, slices, others=(): [(body, (*_made(slices), *others))],
}
"""By name of the op."""


def _loop(condition: Any, body: Any, carried: Operands, others: Operands = ()) -> Calls:
    operands = (*_made(carried), *others)
    return [(condition, operands), (body, operands)]


def _made(operands: Operands) -> list[None]:
    return [None] * len(operands)


@dataclass(frozen=True)
class SubgraphUse:
    """A distinct subgraph.

    Attributes:
        captured: it as a graph of its own.
        attributes: what the graph calls it.
    """

    captured: Captured
    attributes: tuple[str, ...]


def subgraphs_of(captured: Captured) -> tuple[SubgraphUse, ...]:
    """The subgraphs of a captured graph that are placed by themselves."""
    operands: dict[str, list[Operands]] = {}
    for node in captured.module.graph.nodes:
        for body, given in _calls(node):
            operands.setdefault(str(body.target), []).append(given)
    found: dict[object, SubgraphUse] = {}
    for name, calls in operands.items():
        module = getattr(captured.module, name, None)
        if not isinstance(module, torch.fx.GraphModule) or not _is_placeable(module, calls):
            continue
        inner = Captured(module, captured.phase, _roles(module, calls, captured.roles), f"{captured.id}.{name}")
        key = _key(inner)
        known = found.get(key, SubgraphUse(inner, ()))
        found[key] = replace(known, attributes=(*known.attributes, name))
    return tuple(found.values())


def with_bodies(captured: Captured, compiled: Mapping[str, CompiledBody]) -> Captured:
    """The graph with compiled bodies, by attribute, in place of its subgraphs."""
    module = copy_module(captured.module)
    for name, body in compiled.items():
        setattr(module, name, body)
    return replace(captured, module=module)


def _calls(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, Operands]]:
    if node.op != "call_function" or not is_higher_order(node.target) or node.kwargs:
        return
    calls = _CALLS.get(getattr(node.target, "__name__", ""))
    for body, operands in calls(*node.args) if calls is not None else ():
        if isinstance(body, torch.fx.Node) and body.op == "get_attr":
            yield body, operands


def _is_placeable(module: torch.fx.GraphModule, calls: Sequence[Operands]) -> bool:
    """Whether its values are stated, and what it is called with can be laid as it was traced."""
    places = module.graph.find_nodes(op="placeholder")
    if not all("val" in node.meta for node in module.graph.nodes if node.op in ("placeholder", "call_function")):
        return False
    if any(len(operands) != len(places) for operands in calls):
        return False
    made = {place for operands in calls for place, operand in enumerate(operands) if operand is None}
    values = [places[place].meta["val"] for place in made]
    return all(traced_layout(value) is not None for value in values if isinstance(value, torch.Tensor))


def _roles(
    module: torch.fx.GraphModule, calls: Sequence[Operands], roles: Mapping[str, PlaceholderRole]
) -> dict[str, PlaceholderRole]:
    found: dict[str, PlaceholderRole] = {}
    for place, node in enumerate(module.graph.find_nodes(op="placeholder")):
        given = [_role(operands[place], roles) for operands in calls]
        if not isinstance(node.meta["val"], torch.Tensor):
            found[node.name] = PlaceholderRole(InputRole.SYMBOL)
        elif all(role.role.is_weight for role in given):
            found[node.name] = given[0]
    return found


def _role(operand: Any, roles: Mapping[str, PlaceholderRole]) -> PlaceholderRole:
    name = operand.name if isinstance(operand, torch.fx.Node) else ""
    return roles.get(name, PlaceholderRole(InputRole.ACTIVATION))


def _key(body: Captured) -> object:
    """What two bodies have in common that are the same; of one without text, itself."""
    try:
        return body.identity.key
    except RegionTextError:
        return id(body.module)
