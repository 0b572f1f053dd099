"""The costs that graphs are placed by: of their device, and for what the user wants to be short.

Place: part of the planner. Input: backends, their configuration, the database that holds rates. Output: the cost model
of a graph.
Invariants: nothing is probed here: rates were calibrated before, or are those of the machine's family, scaled by a look
at the machine when the first graph of a device asks (``cost.looking``); the same graph gets the same costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mixbackend.backends.common import forks
from mixbackend.configuration import Config
from mixbackend.contracts import Backend, BackendRates, CostModel, OpGraph, TensorMeta
from mixbackend.cost.gpu_costs import GpuCosts
from mixbackend.cost.look import DTYPES
from mixbackend.cost.looking import look_here
from mixbackend.cost.model import cost_model, is_measured, measured_here
from mixbackend.partitioner.amortized import AmortizedCosts
from mixbackend.partitioner.heterogeneous_cost import HeterogeneousCosts, is_heterogeneous
from mixbackend.partitioner.placement import Placements
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.storage import Database, Storage


class SessionCosts:
    """See the module's docstring.

    Args:
        config: what the user asked for.
        backends: that may be used.
        storage: has the database that holds rates.
        records: whether what runs on a GPU is recorded into CUDA graphs.
    """

    def __init__(self, config: Config, backends: Sequence[Backend], storage: Storage, records: bool) -> None:
        self.config = config
        self.backends = tuple(backends)
        self._storage = storage
        self._records = records
        self._lock = forks.long_reentrant_lock()
        self._by_device: dict[tuple[str, frozenset[str]], RooflineCostModel | GpuCosts] = {}
        self._comparable: dict[tuple[str, frozenset[str]], frozenset[str]] = {}
        self._tried: Placements | None = None

    def of(self, graph: OpGraph) -> CostModel:
        """What the graph's plans are priced by."""
        running = self.running(graph)
        if self.config.objective != "compile_time":
            return running
        device = graph.device_type
        return AmortizedCosts(running, {item.name: item.build_seconds(device) for item in self.backends})

    def running(self, graph: OpGraph) -> CostModel:
        """What the graph's calls take."""
        device, dtypes = graph.device_type, _dtypes(graph)
        with self._lock:
            if (device, dtypes) not in self._by_device:
                model = self._on_device(device, dtypes)
                self._by_device[device, dtypes] = self._on_gpu(model) if device == "cuda" else model
            found = self._by_device[device, dtypes]
        if not isinstance(found, GpuCosts):
            return found
        known = found.known(graph)
        if known is not None:
            return known
        placements = None if self._records else self._tried_on(graph)
        processor = self._on_device("cpu", dtypes) if is_heterogeneous(graph) else None
        return found.find(graph, placements, processor)

    def _on_device(self, device_type: str, dtypes: frozenset[str]) -> RooflineCostModel:
        """What was calibrated on a device, the table of its family, and priors for the rest."""
        known = is_measured(self.backends, device_type, self.database)
        look = None if known else look_here(device_type, dtypes, self.database)
        with self._lock:
            looked_at = frozenset(item.name for item in self.backends)
            self._comparable[device_type, dtypes] = (
                measured_here(self.backends, device_type, self.database) if look is None else looked_at
            )
        return cost_model(self.backends, device_type, self.database, look, dtypes)

    @property
    def database(self) -> Database:
        """Where rates are kept."""
        return self._storage.database

    def placements(
        self,
        graph: OpGraph,
        backends: Sequence[Backend],
        exclusions: frozenset[tuple[str, str]],
        pinned: Mapping[str, str] | None,
    ) -> Placements:
        """Placements of a graph under the user's wishes: once, those with which its costs were found."""
        with self._lock:
            tried, self._tried = self._tried, None
        if tried is None or tried.graph is not graph or tried.backends != tuple(backends) or exclusions or pinned:
            return self._placements(graph, backends, exclusions, pinned)
        return tried

    def comparable(self, graph: OpGraph) -> frozenset[str]:
        """Backends with estimates that can be held against one another: all of them where this machine was looked at,
        since tables and priors are scaled to it alike, else those with rates that were measured here."""
        self.running(graph)
        with self._lock:
            return self._comparable[graph.device_type, _dtypes(graph)]

    def error(self, graph: OpGraph, names: Iterable[str]) -> float:
        """The largest relative error that these backends' rates state; 0 where they were measured here."""
        rates = self._rates(graph)
        return max((rates[name].error for name in names if name in rates), default=0.0)

    def _rates(self, graph: OpGraph) -> Mapping[str, BackendRates]:
        costs = self.running(graph)
        costs = costs.accelerator if isinstance(costs, HeterogeneousCosts) else costs
        return costs.rates if isinstance(costs, RooflineCostModel) else {}

    def _on_gpu(self, model: RooflineCostModel) -> GpuCosts:
        """Costs where a GPU works beside the processor."""
        names = frozenset(item.name for item in self.backends if item.traits().device_types == {"cpu"})
        return GpuCosts(model, names)

    def _tried_on(self, graph: OpGraph) -> Placements:
        """Kept until the graph is placed, or another one tried."""
        with self._lock:
            if self._tried is None or self._tried.graph is not graph:
                self._tried = self._placements(graph, self.backends)
            return self._tried

    def _placements(
        self,
        graph: OpGraph,
        backends: Sequence[Backend],
        exclusions: frozenset[tuple[str, str]] = frozenset(),
        pinned: Mapping[str, str] | None = None,
    ) -> Placements:
        return Placements(
            graph,
            backends,
            preferences=self.config.preferences(),
            exclusions=exclusions,
            pinned=pinned,
            minimum_ops=dict(self.config.min_region),
        )


def _dtypes(graph: OpGraph) -> frozenset[str]:
    """Of a graph's values, by name: those that products differ by."""
    metas = (*(item.meta for item in graph.inputs), *(meta for node in graph.nodes for meta in node.outputs))
    names = {str(meta.dtype).partition(".")[2] for meta in metas if isinstance(meta, TensorMeta)}
    return frozenset(names.intersection(DTYPES))
