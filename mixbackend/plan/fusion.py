"""Fusion: which values of a planned graph its owners keep out of memory.

Place: below ``plan.rematerialization``, which decides with it what the forward saves for the backward.
Input: a graph, a plan of it, the backends. Output: answers about single values.
Invariants: pure. A value is kept out of memory between two ops if they have one owner that says it fuses their
classes (``Traits.fused``); views pass values on and are no readers.
Matrices of padded products have gaps between rows inside their owner's region (``Traits.pads_products``) alone.
Non-goals: whether an owner really fuses two ops; that depends on more than their classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mixbackend.contracts import Backend, OpGraph, Plan
from mixbackend.contracts.rate_rows import UNALIGNED, rate_row

_FREE_CLASSES = frozenset({"view", "factory"})


@dataclass(frozen=True)
class Fusion:
    """A planned graph and what its owners fuse.

    Attributes:
        graph: what was planned.
        owner: name of the backend of each node.
        classes: of ops, by node.
        pairs: (producer class, consumer class) pairs between which a backend keeps values out of memory, by its name.
        padded: products with rows that do not begin aligned, of owners that pad such.
    """

    graph: OpGraph
    owner: Mapping[str, str]
    classes: Mapping[str, str]
    pairs: Mapping[str, frozenset[tuple[str, str]]]
    padded: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, graph: OpGraph, plan: Plan, backends: Sequence[Backend]) -> Fusion:
        """What a plan says."""
        owner = {name: region.backend for region in plan.regions for name in region.nodes}
        views = {node.name: graph.view(node.name) for node in graph.placed_nodes}
        padding = {backend.name for backend in backends if backend.traits().pads_products}
        return cls(
            graph,
            owner,
            {name: view.op_class for name, view in views.items()},
            {backend.name: frozenset(backend.traits().fused_on(graph.device_type)) for backend in backends},
            frozenset(
                name
                for name, view in views.items()
                if owner[name] in padding and UNALIGNED in rate_row(view).split("/")
            ),
        )

    def fuses(self, producer: str, consumer: str) -> bool:
        """Whether a value does not go through memory on its way from one op to another."""
        owner = self.owner[producer]
        return self.owner[consumer] == owner and (self.classes[producer], self.classes[consumer]) in self.pairs[owner]

    def readers(self, name: str) -> Iterator[str]:
        """Ops that read a value, directly or through views of it."""
        for consumer in self.graph.consumers[name]:
            if self.classes.get(consumer) == "view":
                yield from self.readers(consumer)
            elif consumer in self.classes:
                yield consumer

    def is_returned(self, name: str) -> bool:
        """Whether the graph returns a value, or a view of it."""
        views = (consumer for consumer in self.graph.consumers[name] if self.classes.get(consumer) == "view")
        return name in self.graph.outputs or any(self.is_returned(view) for view in views)

    def padded_operands(self, name: str) -> frozenset[str]:
        """What padded products read that is computed from a value in the same pass, this value itself among it."""
        found: set[str] = set()
        seen, waiting = {name}, [name]
        while waiting:
            current = waiting.pop()
            for reader in self.readers(current):
                if reader in self.padded and self.owner[reader] == self.owner[current]:
                    found.add(current)
                elif reader not in seen and self.fuses(current, reader):
                    seen.add(reader)
                    waiting.append(reader)
        return frozenset(found)

    @cached_property
    def unfused(self) -> frozenset[str]:
        """Nodes that are not kept out of memory together with all their readers, and that are not free to repeat."""
        return frozenset(
            name
            for name in self.owner
            if self.classes[name] not in _FREE_CLASSES
            and not all(self.fuses(name, reader) for reader in self.readers(name))
        )
