"""Collectives: which exchanges of a graph among ranks can be recorded, and which nodes must be recorded together.

Place: below ``graph_segments``. Input: a captured graph. Output: ``Exchange`` values.
An exchange is begun by a collective, which runs on a stream of its process group, and ended by ``wait_tensor``, which
lets the stream of the caller wait for it. NCCL's can be recorded: torch sees that the stream is captured, and the
group's stream joins the recording at the beginning and leaves it at the wait. Either end alone cannot: a recording
must not end while another stream works for it, and what waits would find nothing to wait for in a replay. Nor may
anything outside read what is still on its way: the inputs of a recording are copied before it runs. So the nodes of an
exchange are in one recording or in none. Exchanges of two groups under way at once are not recorded: the branches of
a recording begin in any order, and ranks that begin them in different orders may wait for one another for ever.

What ranks need not agree on: a collective must run as often and in the same order on every rank of its group; how it is
launched is each rank's own. A replay launches the kernels of the calls that it recorded, and NCCL orders replays and
other calls of one communicator as they are given to the stream. So a rank may replay, while another one that failed to
record, holds gradients or records anew runs the same without a graph. Two things would break that, and neither is
done: a rank that runs a collective more often than the user's code does (see ``recording``: a segment with collectives
is never run twice for one call), and a recording that waits for other ranks to record (``record_without_other_ranks``).
Groups are connected when something is recorded, and for these very sizes: nothing is before one call without.
Invariants: every node that is tagged as a collective is in one exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mixbackend.contracts import OpGraph, OpNode, OpTag
from mixbackend.contracts.ops import Argument
from mixbackend.contracts.torch_compat import why_group_is_not_recorded
from mixbackend.partitioner.judging import GETITEM

_WAIT = "_c10d_functional.wait_tensor.default"
_BEGIN = frozenset(
    f"_c10d_functional.{name}.default"
    for name in (
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all_single",
        "broadcast",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
    )
)
"""Collectives of all ranks of a group. Sending to one rank connects to it at the first call of each pair, and is not
among them."""


@dataclass(frozen=True)
class Exchange:
    """What happens between ranks from the beginning of a collective to the end of waiting for it.

    Attributes:
        nodes: names of what begins it, reads what is on its way, and waits, in graph order.
        obstacle: why it cannot be recorded; empty if it can.
    """

    nodes: tuple[str, ...]
    obstacle: str = ""


@dataclass
class _Open:
    """An exchange while the graph is walked through.

    Attributes:
        nodes: of it so far.
        group: name of the process group.
        obstacle: see ``Exchange``.
        tensors: how many the collective makes.
        waited: numbers of those that were waited for.
    """

    nodes: list[str]
    group: str = ""
    obstacle: str = ""
    tensors: int = 0
    waited: set[int] = field(default_factory=set)

    @property
    def is_under_way(self) -> bool:
        """Whether something was not waited for yet."""
        return len(self.waited) < self.tensors

    def block(self, reason: str) -> None:
        """Say why it cannot be recorded; the first reason stays."""
        self.obstacle = self.obstacle or f"a collective {reason}"


def exchanges_of(graph: OpGraph, device: int) -> tuple[Exchange, ...]:
    """All exchanges of a graph.

    Args:
        device: number of the GPU of the graph.
    """
    if not any(OpTag.COLLECTIVE in node.tags for node in graph.nodes):
        return ()
    walk = _Walk(device)
    for node in graph.nodes:
        walk.take(node)
    return walk.found(graph.outputs)


def blocked_nodes(exchanges: Iterable[Exchange]) -> dict[str, str]:
    """Names of the nodes of exchanges that cannot be recorded, and why."""
    return {name: exchange.obstacle for exchange in exchanges if exchange.obstacle for name in exchange.nodes}


def groups_of(nodes: Iterable[OpNode]) -> frozenset[str]:
    """Names of the process groups of the collectives among these nodes."""
    collectives = (node for node in nodes if OpTag.COLLECTIVE in node.tags)
    return frozenset(value for node in collectives if isinstance(value := _group(node), str))


def _group(node: OpNode) -> Argument:
    return dict(node.arguments).get("group_name")


def torn(exchanges: Iterable[Exchange], homes: Mapping[str, Sequence[int]], pieces: Mapping[int, int]) -> set[int]:
    """Regions of recordings that hold a part of an exchange, where other parts of it are elsewhere.

    Args:
        homes: numbers of the regions that run a node.
        pieces: number of the recording that a region is part of; those that are in none are not there.
    """
    apart: set[int] = set()
    for exchange in exchanges:
        regions = {number for name in exchange.nodes for number in homes.get(name, ())}
        if len({pieces.get(number) for number in regions}) > 1:
            apart |= regions & pieces.keys()
    return apart


class _Walk:
    """Goes through a graph node by node."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._all: list[_Open] = []
        self._on_their_way: dict[str, tuple[_Open, int]] = {}
        """Names of values that may not be read yet, and which tensor of which exchange they are made of."""

    def take(self, node: OpNode) -> None:
        """The next node; numbers are no data."""
        if node.is_symbolic:
            return
        read = [name for name in dict.fromkeys(node.references()) if name in self._on_their_way]
        if OpTag.COLLECTIVE not in node.tags:
            self._pass_on(node, read)
        elif node.op == _WAIT:
            self._wait(node, read)
        else:
            self._begin(node, read)

    def found(self, outputs: Iterable[str | None]) -> tuple[Exchange, ...]:
        """All exchanges, when every node was taken."""
        for name in outputs:
            if name in self._on_their_way:
                self._on_their_way[name][0].block("is waited for outside of the graph")
        for exchange in self._all:
            if exchange.is_under_way:
                exchange.block("is not waited for")
        return tuple(Exchange(tuple(item.nodes), item.obstacle) for item in self._all)

    def _begin(self, node: OpNode, read: Sequence[str]) -> None:
        group = _group(node)
        made = _Open([node.name], str(group), self._why_not(node, group), len(node.outputs))
        for other in self._all:
            if other.is_under_way and other.group != made.group:
                made.block("runs beside one of another group")
                other.block("runs beside one of another group")
        for name in read:
            made.block("sends what is still on its way")
            self._on_their_way[name][0].block("is sent on before it is waited for")
        self._all.append(made)
        self._on_their_way[node.name] = made, 0

    def _why_not(self, node: OpNode, group: object) -> str:
        if node.op not in _BEGIN or not isinstance(group, str):
            return f"{node.op} talks to other processes"
        reason = why_group_is_not_recorded(group, self._device)
        return f"{node.op}: {reason}" if reason else ""

    def _wait(self, node: OpNode, read: Sequence[str]) -> None:
        if not read:
            self._all.append(_Open([node.name], obstacle=f"{node.op} waits for what was begun outside of the graph"))
            return
        exchange, tensor = self._on_their_way[read[0]]
        exchange.nodes.append(node.name)
        exchange.waited.add(tensor)

    def _pass_on(self, node: OpNode, read: Sequence[str]) -> None:
        """Views of what is on its way, and each of several tensors, are on their way as well."""
        if not read:
            return
        exchange, tensor = self._on_their_way[read[0]]
        exchange.nodes.append(node.name)
        for name in read[1:]:
            if self._on_their_way[name][0] is not exchange:
                exchange.block("is read beside another before both are waited for")
                self._on_their_way[name][0].block("is read beside another before both are waited for")
        if node.op == GETITEM:
            place = node.arguments[1][1]
            assert isinstance(place, int), "several tensors are numbered"
            tensor = place
        self._on_their_way[node.name] = exchange, tensor
