"""The costs that graphs are placed by: of their device, and for what the user wants to be short.

Place: part of the planner. Input: backends, their configuration, the database that holds rates. Output: the cost model
of a graph.
Invariants: nothing is measured here (``calibrate.session_costs`` does that before); rates of a device are read once,
when the first graph is there; the same graph gets the same costs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from mixbackend.configuration import Config
from mixbackend.contracts import Backend, CostModel, OpGraph
from mixbackend.cost.gpu_costs import GpuCosts
from mixbackend.cost.model import cost_model
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
        self._lock = threading.RLock()
        self._by_device: dict[str, CostModel | GpuCosts] = {}
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
        device = graph.device_type
        with self._lock:
            if device not in self._by_device:
                model = self.on_device(device)
                self._by_device[device] = self._on_gpu(model) if device == "cuda" else model
            found = self._by_device[device]
        if not isinstance(found, GpuCosts):
            return found
        known = found.known(graph)
        if known is not None:
            return known
        placements = None if self._records else self._tried_on(graph)
        # Rates of the processor are not measured for a graph on a GPU.
        processor = cost_model(self.backends, "cpu", self.database) if is_heterogeneous(graph) else None
        return found.find(graph, placements, processor)

    def on_device(self, device_type: str) -> CostModel:
        """What is known of a device, and priors for the rest."""
        return cost_model(self.backends, device_type, self.database)

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

    def probed(self, graph: OpGraph) -> frozenset[str]:
        """Backends of which at least some rates were measured on the graph's device: they run there."""
        costs = self.running(graph)
        costs = costs.accelerator if isinstance(costs, HeterogeneousCosts) else costs
        rates = costs.rates if isinstance(costs, RooflineCostModel) else {}
        return frozenset(
            name for name, known in rates.items() if any(rate.provenance == "probed" for _, _, rate in known.rates)
        )

    def _on_gpu(self, model: CostModel) -> GpuCosts:
        """Costs where a GPU works beside the processor."""
        assert isinstance(model, RooflineCostModel)
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
