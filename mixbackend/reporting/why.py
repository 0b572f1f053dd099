"""Why nodes are where they are: the answer to ``Report.why`` and ``mixbackend explain --why``.

Place: beside ``records``. Input: records of graphs, and patterns. Output: ``NodeAnswer`` values.
A pattern is shell-style and is held against the node's name, its operator (with or without overload and ``aten.``) and
its module path; a module path also means everything inside.
Raises ``MixbackendError`` for patterns that match nothing: all of them at once, with the nearest names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from mixbackend.contracts import MixbackendError, OpNode, PlacementError
from mixbackend.nearest_name import nearest_name
from mixbackend.partitioner.alternatives import Alternative
from mixbackend.partitioner.counterfactuals import NodeAlternatives, NodeOption
from mixbackend.reporting.decided import measured_alone
from mixbackend.reporting.node_answer import NodeAnswer
from mixbackend.reporting.records import GraphRecord
from mixbackend.reporting.summary import short_op

MOST_NODES = 40
"""So many nodes are explained; a pattern that means more should be narrower."""


def answers(
    graphs: Sequence[GraphRecord], patterns: Sequence[str], *, placed: int = 0, most: int = MOST_NODES
) -> tuple[NodeAnswer, ...]:
    """Answers about all nodes that some pattern means, in graph order, ``most`` of them.

    Args:
        placed: so many (node, backend) pairs of each graph are placed again with all else free.

    Raises:
        MixbackendError: a pattern means no node.
    """
    nodes = [(record, node) for record in graphs for node in record.graph.placed_nodes]
    _check(patterns, [node for _, node in nodes])
    found: list[NodeAnswer] = []
    for record in graphs:
        meant = [node for node in record.graph.placed_nodes if any(means(pattern, node) for pattern in patterns)]
        meant = meant[: most - len(found)]
        found += _of_graph(record, meant, placed) if meant else []
    return tuple(found)


def means(pattern: str, node: OpNode) -> bool:
    """Whether a pattern means a node."""
    wanted = pattern.removeprefix("%")
    names = (node.name, node.op, node.op.rsplit(".", 1)[0], short_op(node.op), node.module)
    return any(fnmatchcase(name, wanted) for name in names) or fnmatchcase(node.module, f"{wanted}.*")


def _check(patterns: Sequence[str], nodes: Sequence[OpNode]) -> None:
    missing = [pattern for pattern in patterns if not any(means(pattern, node) for node in nodes)]
    if patterns and not missing:
        return
    listed = ", ".join(map(repr, missing)) or "an empty pattern"
    names = set(_names(nodes))
    nearest = [found for pattern in missing if (found := nearest_name(pattern, names)) is not None]
    hint = f"did you mean {', '.join(map(repr, nearest))}?" if nearest else _some(nodes)
    raise MixbackendError(what=f"no node, operator or module of {len(nodes)} nodes is meant by {listed}", hint=hint)


def _names(nodes: Iterable[OpNode]) -> Iterable[str]:
    for node in nodes:
        yield from (node.name, node.op, short_op(node.op))
        parts = node.module.split(".")
        yield from (".".join(parts[: length + 1]) for length in range(len(parts)) if node.module)


def _some(nodes: Sequence[OpNode]) -> str:
    ops = sorted({short_op(node.op) for node in nodes})
    return f"operators are {', '.join(ops[:12])}{'...' if len(ops) > 12 else ''}" if ops else "nothing was compiled"


def _of_graph(record: GraphRecord, nodes: Sequence[OpNode], placed: int) -> list[NodeAnswer]:
    rows = _rows(record, [node.name for node in nodes], placed)
    home = {name: region for region in record.plan.regions for name in region.nodes}
    how = record.decided
    found = []
    for node in nodes:
        row, region = rows.get(node.name), home[node.name]
        options = row.options if row is not None else _refused(record, node.name)
        alone = [(name, measured_alone(record.tuning, name)) for name in [item.alternative.backend for item in options]]
        found.append(
            NodeAnswer(
                graph=record.graph.id,
                node=node.name,
                op=node.op,
                module=node.module,
                source=node.source,
                follows=row.follows if row is not None else node.name,
                region=region.id,
                backend=region.backend,
                region_s=record.record(region).measured_s,
                parts=row.parts if row is not None else None,
                options=options,
                alone_s=tuple((name, seconds) for name, seconds in alone if seconds is not None),
                decided=how,
            )
        )
    return found


def _rows(record: GraphRecord, names: Sequence[str], placed: int) -> dict[str, NodeAlternatives]:
    try:
        found = record.counterfactuals.nodes(names, placed) if record.counterfactuals is not None else ()
    except PlacementError:
        found = ()
    return {row.node: row for row in found}


def _refused(record: GraphRecord, name: str) -> tuple[NodeOption, ...]:
    """What is known without prices: which backends refuse."""
    refusals = [refusal for refusal in record.plan.refusals if refusal.node == name]
    return tuple(NodeOption(Alternative(item.backend, None, 0, item)) for item in refusals)
