"""The plan: where every op runs, and why not elsewhere. A value.

Place: made by the partitioner, checked by ``contracts.legality``, executed by the stitcher, shown by the report.
Invariants: equal for equal input; hashable; ``regions`` are in a legal execution order; every placed node of the graph
is in exactly one region.
Units: seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from mixbackend.contracts.ops import Phase
from mixbackend.contracts.verdict import RefusalCode


@dataclass(frozen=True, slots=True)
class PlannedRegion:
    """One connected piece of the graph on one backend.

    Attributes:
        id: unique in the plan, ``r0``, ``r1``... in execution order.
        backend: name of the owner.
        nodes: names in graph order; owned by this region alone.
        copies: cheap nodes of other regions that this one computes again for itself (views, scalars, masks).
        matches: (pattern, nodes) of the patterns that were chosen inside it.
        estimated_s: seconds under the true energy, entry and boundary included.
    """

    id: str
    backend: str
    nodes: tuple[str, ...]
    copies: tuple[str, ...] = ()
    matches: tuple[tuple[str, tuple[str, ...]], ...] = ()
    estimated_s: float = 0.0

    def __str__(self) -> str:
        text = f"{self.id} {self.backend} {self.estimated_s:.3e} s: " + " ".join(self.nodes)
        if self.copies:
            text += " | copies " + " ".join(self.copies)
        for pattern, nodes in self.matches:
            text += f" | {pattern}({' '.join(nodes)})"
        return text


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a backend does not run a node.

    Attributes:
        node: name of the node.
        backend: the one that refused.
        code, detail: see ``contracts.verdict``.
    """

    node: str
    backend: str
    code: RefusalCode
    detail: str = ""

    def __str__(self) -> str:
        return f"%{self.node} not on {self.backend}: {self.code} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    """A legal placement of one graph.

    Attributes:
        graph_id, phase, dynamic: of the graph it was made for.
        regions: in execution order.
        refusals: every refused (node, backend), sorted by node order, then backend.
        estimated_s: true energy of the plan.
        lower_bound_s: no legal plan of connected regions costs less under the same costs.
        single_backend_s: for each backend, the estimate with that backend wherever it can and eager elsewhere; with
            what starting conversions one by one takes there, where another backend starts them at once.
        width: largest number of other atoms that one elimination step had to look at; 0 if the search was not exact.
        search: ``exact``, ``expansion`` or ``beam``.
    """

    graph_id: str
    phase: Phase
    dynamic: bool
    regions: tuple[PlannedRegion, ...]
    refusals: tuple[Refusal, ...] = ()
    estimated_s: float = 0.0
    lower_bound_s: float = 0.0
    single_backend_s: tuple[tuple[str, float], ...] = ()
    width: int = 0
    search: str = "exact"

    @property
    def bound_gap(self) -> float:
        """Seconds between the plan's energy and the lower bound."""
        return max(0.0, self.estimated_s - self.lower_bound_s)

    @property
    def optimal(self) -> bool:
        """Whether the gap is zero up to rounding: no legal plan of connected regions costs less."""
        return self.bound_gap <= 1e-9 * max(self.estimated_s, 1e-12)

    def __str__(self) -> str:
        lines = [
            f"plan for {self.graph_id} phase={self.phase} dynamic={self.dynamic}",
            f"  estimated {self.estimated_s:.6e} s, lower bound {self.lower_bound_s:.6e} s, "
            f"search {self.search} width {self.width}",
        ]
        lines += [f"  single {backend}: {seconds:.6e} s" for backend, seconds in self.single_backend_s]
        lines += [f"  {region}" for region in self.regions]
        lines += [f"  {refusal}" for refusal in self.refusals]
        return "\n".join(lines)
