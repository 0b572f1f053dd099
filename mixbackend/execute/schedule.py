"""Schedule: in which order a stitched function runs its pieces and computes its numbers.

Place: below ``execute.stitch``.
Input: a captured graph, its pieces in execution order. Output: steps; a step is a piece, or a node that belongs to
none: a number, or a view that a number is read through or that leaves the graph.
What leaves the graph as a view of an input or of another result is made by itself, too (``graph.aliases``).
A number is computed as late as its order edges and its readers allow, so that nothing waits for a device sooner than
needed. Where it is read through a view that a piece makes only after the storage was written into, the view is
made once more, outside.
Invariants: pieces keep their order; steps are a topological order over data and effect edges, which is looked at again
once it is made: for every edge of ``graph.effects`` all runs of the first node come before all runs of the second,
those of copies in other pieces included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mixbackend.contracts import OpGraph, PlacementError
from mixbackend.graph.aliases import moves_nothing, only_views, returned_views


class Piece(Protocol):
    """What is called as one: a region, or several of them."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of captured nodes that it reads, in the order of its arguments."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of captured nodes that it computes."""
        ...

    @property
    def members(self) -> tuple[str, ...]:
        """Names of captured nodes that it runs, in graph order, copies included."""
        ...


@dataclass(frozen=True)
class Step:
    """One step of a stitched function.

    Attributes:
        piece: position of the piece that runs; ``None`` where a node runs by itself.
        node: name of that node; empty for a piece.
        again: whether a piece makes the node's value, too, at another time.
    """

    piece: int | None = None
    node: str = ""
    again: bool = False


def schedule(graph: OpGraph, pieces: Sequence[Piece]) -> tuple[Step, ...]:
    """Order the steps.

    Args:
        graph: the captured graph.
        pieces: all of them, in execution order.

    Raises:
        PlacementError: no order honours all edges, with two nodes that are in each other's way.
    """
    deadlines, again = _deadlines(graph, pieces)
    due: dict[int, list[Step]] = {}
    for node in graph.nodes:
        if node.name in deadlines:
            due.setdefault(deadlines[node.name], []).append(Step(node=node.name, again=node.name in again))
    steps: list[Step] = []
    for index, piece in enumerate(pieces):
        steps += due.get(index, ())
        # Where views are all that it is, others make them: those that leave the graph are no piece's to hand over.
        if piece.outputs or not only_views(graph, piece.members):
            steps.append(Step(index))
    steps += due.get(len(pieces), ())
    _check_data(graph, pieces, steps)
    _check_effects(graph, pieces, steps)
    return tuple(steps)


def _deadlines(graph: OpGraph, pieces: Sequence[Piece]) -> tuple[dict[str, int], frozenset[str]]:
    """The piece before which each node that belongs to none is to be there, and which of these pieces make, too.

    What is made once more is read by all steps of nodes; one that turns out late bears on nodes looked at before it.
    """
    views = returned_views(graph).nodes
    again = frozenset(name for name in graph.outputs if name in views)
    while True:
        deadlines, found = _deadlines_with(graph, pieces, views, again)
        if found == again:
            return deadlines, again
        again = found


def _deadlines_with(
    graph: OpGraph, pieces: Sequence[Piece], views: frozenset[str], known: frozenset[str]
) -> tuple[dict[str, int], frozenset[str]]:
    """Deadlines where at least the known nodes are made once more; and all nodes that must be."""
    made = {name: index for index, piece in enumerate(pieces) for name in piece.outputs}
    first_run: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        for name in piece.members:
            first_run.setdefault(name, index)
    given = graph.input_by_name
    followers: dict[str, list[str]] = {}
    for first, second in graph.effects:
        followers.setdefault(first, []).append(second)
    deadlines: dict[str, int] = {}
    for index, names in enumerate((*(piece.inputs for piece in pieces), filter(None, graph.outputs))):
        for name in names:
            if name not in given and name not in made:
                deadlines.setdefault(name, index)
    deadlines.update({name: len(pieces) for name in graph.outputs if name in views and name not in deadlines})
    again = set(known)
    # What reads a node stands behind it in the graph, so that all that limits it is known when it comes up.
    for node in reversed(graph.nodes):
        if node.name not in deadlines:
            continue
        behind = () if moves_nothing(node) else followers.get(node.name, ())
        limits = (deadlines.get(name, first_run.get(name, len(pieces))) for name in behind)
        last = deadlines[node.name] = min(deadlines[node.name], *limits, len(pieces))
        for name in node.references():
            if name in views and node.name in again:
                again.add(name)
            elif name not in again and (name in given or made.get(name, last) < last):
                continue
            elif name in made and name not in again:
                _check_made_again(graph, name, node.name)
                again.add(name)
            deadlines[name] = min(deadlines.get(name, last), last)
    return deadlines, frozenset(again)


def _check_made_again(graph: OpGraph, name: str, reader: str) -> None:
    if not moves_nothing(graph.node_by_name[name]):
        raise _fault(graph, name, reader, "is computed only after what must come behind the number")


def _check_data(graph: OpGraph, pieces: Sequence[Piece], steps: Sequence[Step]) -> None:
    """Every step reads what is there."""
    again = {step.node for step in steps if step.again}
    there = {item.name for item in graph.inputs}
    remade: set[str] = set()
    for step in steps:
        if step.piece is not None:
            reads, reader = pieces[step.piece].inputs, f"piece {step.piece}"
            missing = next((name for name in reads if name not in there), None)
            there.update(pieces[step.piece].outputs)
        else:
            node, reader = graph.node_by_name[step.node], step.node
            if not node.is_symbolic and not step.again:
                raise _fault(graph, step.node, "its readers", "is in no region")
            missing = next((name for name in node.references() if name not in (remade if name in again else there)), "")
            (remade if step.again else there).add(step.node)
        if missing:
            raise _fault(graph, missing, reader, "is not there when it is read")


def _check_effects(graph: OpGraph, pieces: Sequence[Piece], steps: Sequence[Step]) -> None:
    """Every effect edge is honoured by all runs of its two nodes; a piece runs its own in graph order."""
    runs: dict[str, list[int]] = {}
    for place, step in enumerate(steps):
        for name in (step.node,) if step.piece is None else pieces[step.piece].members:
            runs.setdefault(name, []).append(place)
    for first, second in graph.effects:
        before, after = runs.get(first), runs.get(second)
        if not before or not after:
            # A number that nothing reads.
            continue
        early = before[0] if moves_nothing(graph.node_by_name[first]) else before[-1]
        late = after[-1] if moves_nothing(graph.node_by_name[second]) else after[0]
        if early > late:
            raise _fault(graph, first, second, "must run first")


def _fault(graph: OpGraph, first: str, second: str, problem: str) -> PlacementError:
    return PlacementError(
        what=f"graph {graph.id} cannot be stitched: node %{first} {problem} (the other one is %{second})",
        hint="this is a fault of the partitioner or of an edited plan file; report it with MIXBACKEND_DUMP",
    )
