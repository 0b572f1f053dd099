"""Facts of one compiled graph, and the stable dictionary made of them.

Place: made by the runtime out of the graph, its plan, and what compiling and running added.
Invariants: the dictionary is schema version 1; its keys do not change within that version. Every placed node of the
graph is in exactly one region.
Units: seconds; ``None`` where nothing was measured, or where no finite number exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mixbackend.contracts.errors import PlacementError
from mixbackend.contracts.graph import OpGraph
from mixbackend.contracts.numerics import Accuracy
from mixbackend.contracts.plan import Plan, PlannedRegion
from mixbackend.reporting.decided import Decided, alternative_data, by_measurements, without_measurements
from mixbackend.reporting.trials import TuningRecord, finite

if TYPE_CHECKING:
    from mixbackend.partitioner.alternatives import RegionAlternatives
    from mixbackend.partitioner.counterfactuals import Counterfactuals
    from mixbackend.partitioner.explain import Saving


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """What compiling and running one region added to the plan.

    Attributes:
        id: of the planned region.
        measured_s: seconds of a typical call, ``None`` if it was not timed.
        cached: whether it was loaded from the artifact store.
        reused_from: id of the equal region that was compiled first, ``None`` if it was this one.
        notes: of the backend.
        accuracy: of its results at checked calls of this process; ``None`` where none was held against float64.
    """

    id: str
    measured_s: float | None = None
    cached: bool = False
    reused_from: str | None = None
    notes: tuple[str, ...] = ()
    accuracy: Accuracy | None = None


AS_TRACED = "as_traced"
CHANNELS_LAST = "channels_last"


@dataclass(frozen=True, slots=True)
class LayoutRecord:
    """The layout of a graph's images.

    Attributes:
        chosen: ``as_traced`` or ``channels_last``.
        estimated_s: seconds planned for each layout, ``()`` if there was nothing to choose.
        conversions: copies from one layout to another that the chosen graph has more than the traced one.
    """

    chosen: str = AS_TRACED
    estimated_s: tuple[tuple[str, float], ...] = ()
    conversions: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Entry of a graph in the report's dictionary."""
        seconds = {name: finite(value) for name, value in self.estimated_s}
        return {"chosen": self.chosen, "estimated_s": seconds, "conversions": self.conversions}


@dataclass(frozen=True, slots=True)
class IdentityRecord:
    """What a lock file says about a graph beside its plan.

    Attributes:
        key: of its canonical text, see ``graph.identity``.
        inputs: what the caller passes beside weights and saved values.
        weights: ``constant`` or ``live``: the plan is of the graph that is left when constants are split off.
        device: name of the device, with the product.
    """

    key: str
    inputs: tuple[str, ...]
    weights: str
    device: str


@dataclass(frozen=True)
class GraphRecord:
    """One graph: what it is, where it was placed, how that went.

    Attributes:
        graph, plan: of the pipeline.
        regions: one per planned region; those of the plan that are missing were not compiled.
        advice: what would make it faster: refusals, and what lifting them would save.
        layout: of its images, and what else was planned.
        tuning: what was measured before it was placed, ``None`` if nothing was.
        regimes: ranges of sizes, ascending, where the graph has a plan for each; ``()`` if one plan serves all sizes.
        identity: for a lock file; ``None`` where it was not asked for, and of graphs that have no text.
        counterfactuals: what every alternative would cost; asked when it is read, ``None`` if nothing is known.
        selection: what its calls found out about other programs, as plain data; ``None`` if nothing was tried.
    """

    graph: OpGraph
    plan: Plan
    regions: tuple[RegionRecord, ...] = ()
    advice: tuple[Saving, ...] = ()
    layout: LayoutRecord = field(default_factory=LayoutRecord)
    tuning: TuningRecord | None = None
    regimes: tuple[RegimeRecord, ...] = ()
    identity: IdentityRecord | None = None
    counterfactuals: Counterfactuals | None = field(default=None, compare=False, repr=False)
    selection: Mapping[str, Any] | None = None

    @cached_property
    def alternatives(self) -> dict[str, RegionAlternatives]:
        """By region id, for the costliest regions; empty where the plan cannot be priced any more."""
        try:
            found = self.counterfactuals.regions if self.counterfactuals is not None else ()
            return {item.region: item for item in found}
        except PlacementError:
            return {}

    @property
    def decided(self) -> Decided:
        """How the placement came about."""
        measured = by_measurements(self.tuning)
        if measured is not None:
            return measured
        return without_measurements(self.plan.search, [item.margin_s for item in self.alternatives.values()])

    @cached_property
    def record_by_id(self) -> dict[str, RegionRecord]:
        """Records by region id."""
        return {record.id: record for record in self.regions}

    def record(self, region: PlannedRegion) -> RegionRecord:
        """The record of a planned region; an empty one if it was not compiled."""
        return self.record_by_id.get(region.id, RegionRecord(region.id))

    def ops(self, region: PlannedRegion) -> dict[str, int]:
        """How often each operator is in a region, most frequent first, then by name."""
        counts = Counter(self.graph.node_by_name[name].op for name in region.nodes)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def modules(self, region: PlannedRegion) -> tuple[str, ...]:
        """Paths of the modules that have ops in a region, in order of first use."""
        paths = (self.graph.node_by_name[name].module for name in region.nodes)
        return tuple(dict.fromkeys(path for path in paths if path))

    def nodes_per_backend(self) -> dict[str, int]:
        """How many nodes each backend runs, most first, then by name."""
        counts: Counter[str] = Counter()
        for region in self.plan.regions:
            counts[region.backend] += len(region.nodes)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``graphs`` in the report's dictionary."""
        plan = self.plan
        return {
            "id": self.graph.id,
            "phase": self.graph.phase,
            "dynamic": self.graph.dynamic,
            "nodes": len(self.graph.placed_nodes),
            "regions": [self._region(region) for region in plan.regions],
            "refusals": self._refusals(),
            "estimated_s": finite(plan.estimated_s),
            "single_backend_s": {backend: finite(seconds) for backend, seconds in plan.single_backend_s},
            "optimal": plan.optimal,
            "bound_gap": finite(plan.bound_gap),
            "layout": self.layout.to_dict(),
            "tuning": self.tuning.to_dict() if self.tuning is not None else None,
            "selection": None if self.selection is None else dict(self.selection),
            "regimes": [regime.to_dict() for regime in self.regimes],
            "decided": self.decided.to_dict(),
            "advice": [saving.to_dict() for saving in self.advice],
        }

    def _region(self, region: PlannedRegion) -> dict[str, Any]:
        record, known = self.record(region), self.alternatives.get(region.id)
        return {
            "id": region.id,
            "backend": region.backend,
            "nodes": list(region.nodes),
            "ops": self.ops(region),
            "modules": list(self.modules(region)),
            "estimated_s": finite(region.estimated_s),
            "measured_s": finite(record.measured_s),
            "cached": record.cached,
            "reused_from": record.reused_from,
            "alternatives": [alternative_data(item) for item in known.alternatives] if known is not None else [],
            "margin_s": finite(known.margin_s) if known is not None else None,
            "error": None if record.accuracy is None else asdict(record.accuracy),
        }

    def _refusals(self) -> list[dict[str, str]]:
        rows = []
        for refusal in self.plan.refusals:
            node = self.graph.node_by_name[refusal.node]
            rows.append(
                {
                    "node": refusal.node,
                    "op": node.op,
                    "module": node.module,
                    "backend": refusal.backend,
                    "code": refusal.code,
                    "detail": refusal.detail,
                }
            )
        return rows


@dataclass(frozen=True)
class RegimeRecord:
    """One range of sizes of a graph, and its plan.

    Attributes:
        quantity: what is compared with the bounds: a symbol, or a product of symbols.
        first, last: inclusive bounds, ``last`` is ``None`` without end.
        size: the quantity's value that the plan was made for.
        built: whether a size of the range came, so that the plan was compiled.
        record: the graph as it is placed there.
    """

    quantity: str
    first: int
    last: int | None
    size: int
    built: bool
    record: GraphRecord

    def to_dict(self) -> dict[str, Any]:
        """Entry of a graph in the report's dictionary."""
        whole = self.record.to_dict()
        bounds = {"quantity": self.quantity, "first": self.first, "last": self.last, "size": self.size}
        kept = ("regions", "estimated_s", "single_backend_s", "tuning")
        return {**bounds, "built": self.built, **{name: whole[name] for name in kept}}
