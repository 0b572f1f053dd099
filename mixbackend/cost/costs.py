"""The costs that graphs are placed by: of their device, and for what the user wants to be short.

Place: part of the planner. Input: backends, their configuration, the database that holds rates. Output: the cost model
of a graph.
Invariants: rates of a device are asked for once, when the first graph is there; the same graph gets the same costs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial

from mixbackend import registry
from mixbackend.configuration import Config
from mixbackend.contracts import Backend, CostModel, OpGraph, Plan
from mixbackend.cost.gpu_costs import GpuCosts
from mixbackend.cost.model import cost_model
from mixbackend.partitioner.amortized import AmortizedCosts
from mixbackend.partitioner.async_cost import Place, Reprice
from mixbackend.partitioner.heterogeneous_cost import HeterogeneousCosts
from mixbackend.partitioner.placement import Placements
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.storage import Storage


class SessionCosts:
    """See the module's docstring.

    Args:
        config: what the user asked for.
        backends: that may be used.
        storage: has the database that holds rates.
        records: whether what runs on a GPU is recorded into CUDA graphs.
    """

    def __init__(self, config: Config, backends: Sequence[Backend], storage: Storage, records: bool) -> None:
        self._config = config
        self._backends = tuple(backends)
        self._storage = storage
        self._records = records
        self._lock = threading.RLock()
        self._by_device: dict[str, CostModel | GpuCosts] = {}
        self._tried: Placements | None = None

    def of(self, graph: OpGraph) -> CostModel:
        """What the graph's plans are priced by."""
        running = self.running(graph)
        if self._config.objective != "compile_time":
            return running
        device = graph.device_type
        return AmortizedCosts(running, {item.name: item.build_seconds(device) for item in self._backends})

    def running(self, graph: OpGraph) -> CostModel:
        """What the graph's calls take."""
        device = graph.device_type
        with self._lock:
            if device not in self._by_device:
                apart = self._foreign() if self._config.search.mode == "measure" else frozenset()
                model = cost_model(self._backends, device, self._storage.database, apart=apart)
                self._by_device[device] = self._on_gpu(model) if device == "cuda" else model
            found = self._by_device[device]
        return found.of(graph, *self._trials(graph)) if isinstance(found, GpuCosts) else found

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
        """Costs where a GPU works beside the processor, whose own are those that are known."""
        assert isinstance(model, RooflineCostModel)
        processor = partial(cost_model, self._backends, "cpu", self._storage.database, measure=False)
        names = frozenset(item.name for item in self._backends if item.traits().device_types == {"cpu"})
        return GpuCosts(model, self._records, processor, names)

    def _trials(self, graph: OpGraph) -> tuple[Place, Reprice]:
        """Placing a graph, and pricing a plan of it, at costs that are yet to be decided."""

        def placed(costs: CostModel) -> Plan:
            return self._tried_on(graph).plan(costs)

        def priced(plan: Plan, costs: CostModel) -> float:
            return self._tried_on(graph).seconds(plan, costs)

        return placed, priced

    def _tried_on(self, graph: OpGraph) -> Placements:
        """Kept until the graph is placed, or another one tried."""
        with self._lock:
            if self._tried is None or self._tried.graph is not graph:
                self._tried = self._placements(graph, self._backends)
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
            preferences=self._config.preferences(),
            exclusions=exclusions,
            pinned=pinned,
            minimum_ops=dict(self._config.min_region),
        )

    def _foreign(self) -> frozenset[str]:
        """Backends of other distributions: where measuring was asked for, whatever they do costs a process at most."""
        origins = {info.name: info.origin for info in registry.backends() if info.origin != registry.IN_PROCESS}
        others = {name for name, origin in origins.items() if origin.partition(" ")[0] != registry.OURS}
        return frozenset(others.intersection(item.name for item in self._backends))
