"""Stored plans: what was planned by estimates is a row of the database, which later processes take.

Place: between the planner and the database. Input: a described graph, and what is asked about it. Output: what an
earlier process found, or nothing.
A row's key holds all that planning depends on: the graph with names, sizes and modules; backends in their order with
their fingerprints, which hold the libraries' versions; what the configuration says about placement; device, threads,
rates, and our own sources. So an equal question has the answer that a search would find, and no backend is asked.
Invariants: what is read is held against the graph: a plan that is not legal, or of other backends, counts as missing
and is made again. Nothing is taken while a look at the machine is to be taken again.
Non-goals: what was measured (``select.decision_store``); repairs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from mixbackend.configuration import Config
from mixbackend.contracts import OpGraph, OpNode, PlacementError, Plan
from mixbackend.contracts.legality import find_problems
from mixbackend.cost.look_rows import is_due
from mixbackend.host.devices import device_name
from mixbackend.host.openmp import cores
from mixbackend.host.own_sources import own_sources
from mixbackend.partitioner.plan_data import plan_from_data, plan_to_data
from mixbackend.storage import Storage
from mixbackend.storage.tables import ASKED

_ADDRESS = " at 0x"
"""Text of what has no other name than its address: no other process has the same."""


@dataclass(frozen=True)
class StoredPlans:
    """See the module's docstring.

    Attributes:
        storage: has the database.
        config: what the user asked for.
        fingerprints: of the backends, by name, in order of preference.
        takes_effects: names of those that do, see ``contracts.legality``.
        facts: further texts that planning depends on.
    """

    storage: Storage
    config: Config
    fingerprints: Mapping[str, str]
    takes_effects: frozenset[str]
    facts: tuple[str, ...] = ()

    def plan(self, graph: OpGraph, question: str) -> Plan | None:
        """The plan of a graph that an equal question had before; ``None`` if there is none."""
        data = self.read(graph, question)
        if data is None:
            return None
        try:
            plan = replace(plan_from_data(data), graph_id=graph.id)
        except PlacementError:
            return None
        known = all(region.backend in self.fingerprints for region in plan.regions)
        return plan if known and not find_problems(graph, plan.regions, self.takes_effects) else None

    def keep_plan(self, graph: OpGraph, question: str, plan: Plan) -> None:
        """Keep the answer to a question about a graph."""
        self.keep(graph, question, plan_to_data(plan))

    def read(self, graph: OpGraph, question: str) -> dict[str, Any] | None:
        """What was kept; the caller holds it against the graph."""
        asked = self._asked(graph, question)
        return None if asked is None or self._look_is_due() else self.storage.database.plan(_digest(asked))

    def keep(self, graph: OpGraph, question: str, value: Mapping[str, Any]) -> None:
        """Keep plain data as the answer to a question about a graph."""
        asked = self._asked(graph, question)
        if asked is None:
            return
        kept, device = {**value, ASKED: asked}, device_name(graph.device_type)
        self.storage.database.set_plan(_digest(asked), kept, device=device, fingerprints=self.fingerprints)

    def asked_here(self, device_type: str) -> dict[str, Any]:
        """What planning depends on beside the graph and the question about it, by name."""
        return {
            "configuration": self.config.model_dump(
                mode="json", include={"rules", "min_region", "objective", "weights"}
            ),
            "order": list(self.fingerprints),
            "fingerprint": dict(self.fingerprints),
            "facts": list(self.facts),
            "device": device_name(device_type),
            "threads": torch.get_num_threads(),
            "cores": cores(),
            "torch": torch.__version__,
            "sources": own_sources(),
            "rates": self.storage.database.rates_stamp(),
        }

    def _asked(self, graph: OpGraph, question: str) -> dict[str, Any] | None:
        """What a row's key is made of; ``None`` where no other process can ask the same."""
        text = "\n".join(_lines(graph))
        if _ADDRESS in text or (graph.device_type == "cuda" and not torch.cuda.is_available()):
            return None
        digest = hashlib.sha256(text.encode()).hexdigest()
        return {"question": question, "graph": digest, **self.asked_here(graph.device_type)}

    def _look_is_due(self) -> bool:
        """Whether planning would look at the machine again."""
        try:
            return any(map(is_due, self.storage.database.rates_of("look")))
        except (KeyError, TypeError, ValueError):
            return True


def _digest(asked: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _lines(graph: OpGraph) -> Iterator[str]:
    """All of a graph that plans depend on; sets in order."""
    yield f"{graph.phase} {graph.deterministic} {sorted(graph.saved)} {graph.outputs} {graph.effects}"
    for item in graph.inputs:
        yield f"{item.name} {item.meta!r} {item.role.value} {item.source}"
    for node in graph.nodes:
        yield from _node_lines(node)


def _node_lines(node: OpNode) -> Iterator[str]:
    tags = sorted(tag.value for tag in node.tags)
    yield f"{node.name} {node.op} {node.arguments!r} {node.outputs!r} {node.module} {node.module_class} {tags}"
    for body in node.bodies:
        yield f"body {body.runs} {body.assumed} {body.one_of_several} {body.placed_s}"
        for view in body.views:
            yield f"{view.inputs!r} {view.phase} {view.op_class}"
            yield from _node_lines(view.node)
