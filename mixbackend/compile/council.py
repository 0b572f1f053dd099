"""Council: one rank of a job among the others, about one question.

Place: between ``storage.job`` and what all ranks must decide alike: ``compile.agreement`` and ``joint_agreement``.
Input: a question's key, values as plain data. Output: what another rank wrote; events of what came of that.
Invariants: nothing is raised: where the store fails a rank decides by itself, with an event.
Units: seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from mixbackend.graph.identity import Identity
from mixbackend.plan.environment import Environment
from mixbackend.reporting import Event
from mixbackend.storage.job import Job, JobStoreError, Standing, Turn

LEAST_S, PER_NODE_S, MOST_S = 2.0, 0.002, 20.0
"""So long a rank waits for another's plan: as planning took in a fresh process (1.4 s for 14 nodes, 9.3 s for 5,600),
which is less than compiling takes."""


def patience_s(nodes: int) -> float:
    """So long another rank may plan a graph of so many nodes while this one waits."""
    return min(MOST_S, LEAST_S + PER_NODE_S * nodes)


def key_of(kind: str, identity: Identity, environment: Environment) -> str:
    """What all ranks know a question by.

    Args:
        kind: what is asked.
        identity: of the graph.
        environment: as it is configured; what it found on this machine is no part of it.
    """
    include = {"backends", "rules", "min_region", "objective", "weights"}
    config = environment.config.model_dump(mode="json", include=include)
    facts = [kind, identity.graph.phase, identity.graph.device_type, identity.key, environment.records, config]
    if any(rule.match.module or rule.match.module_class for rule in environment.config.preferences()):
        facts.append([(node.module, node.module_class) for node in identity.graph.nodes])
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Council:
    """This rank among the others, about one graph: asks, writes, and tells what happened; never raises.

    Attributes:
        job: the ranks.
        key: of the graph.
        graph_id: its name in events.
        environment: has the events.
    """

    job: Job
    key: str
    graph_id: str
    environment: Environment

    @contextmanager
    def turn(self, nodes: int) -> Iterator[Turn | None]:
        """See ``Job.turn``; ``None`` if the store fails."""
        with ExitStack() as stack:
            turn = None
            try:
                turn = stack.enter_context(self.job.turn(self.key, patience_s(nodes)))
            except JobStoreError as error:
                self.apart(str(error))
            if turn is not None and turn.found is None and not turn.claimed:
                self.tell(f"planned here, no plan of another rank came within {turn.waited_s:.2f} s")
            yield turn

    def standing(self, cell: str = "") -> Standing | None:
        """See ``Job.standing``."""
        try:
            return self.job.standing(self.key + cell)
        except JobStoreError as error:
            self.apart(str(error))
            return None

    def first(self, value: Mapping[str, Any], cell: str = "") -> Standing | None:
        """Write a value; what another rank wrote before, ``None`` if this rank's stands, or that is not known."""
        try:
            standing = self.job.publish(self.key + cell, value)
        except JobStoreError as error:
            self.apart(str(error))
            return None
        return None if standing.rank == self.job.rank and standing.value == value else standing

    def follows(self, standing: Standing, waited_s: float = 0.0) -> None:
        """What another rank wrote, or this one for an earlier graph, is done here."""
        if standing.rank == self.job.rank:
            return
        after = f", after {waited_s:.2f} s" if waited_s else ""
        self.tell(f"does what rank {standing.rank} decided{after}")

    def doubts(self, standing: Standing, error: Exception) -> None:
        """What another rank wrote does not hold here."""
        self.apart(f"what rank {standing.rank} decided does not hold here: {error}")

    def apart(self, why: str) -> None:
        """This rank goes its own way."""
        self._event("fallback", f"decided by this rank alone, others may run other programs: {why}")

    def tell(self, what: str) -> None:
        """Something ordinary."""
        self._event("ranks", what)

    def _event(self, kind: Any, detail: str) -> None:
        self.environment.events.append(Event(kind, self.graph_id, "", "", detail))
