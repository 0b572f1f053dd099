"""How long a placement takes, and how good it is, as graphs grow: ``mixbackend bench partitioner``.

Place: beside the model suite. Input: node counts. Output: one row per count with seconds in all and per stage, whether
the plan is proved optimal, and its regions.
Graphs repeat captured blocks of real architectures; five backends answer from support tables and rates of the kind that
real ones have (a graph compiler, a session-based runtime, a convolution library, a library of fused layers, eager).
The rates are fixed here, so that rows of different machines compare in everything but seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import torch

from mixbackend.benchmarks.captured_blocks import captured_blocks, repeated
from mixbackend.contracts import (
    Availability,
    Backend,
    BackendRates,
    CompiledRegion,
    DeviceModel,
    OpClass,
    OpGraph,
    OpRate,
    OpRule,
    OpTag,
    OpView,
    Region,
    RegionConditions,
    Supported,
    SupportTable,
    Traits,
    Verdict,
)
from mixbackend.partitioner.placement import place
from mixbackend.partitioner.roofline import RooflineCostModel
from mixbackend.partitioner.step_clock import StepClock

FLOAT = frozenset({torch.float32})
DEVICE = DeviceModel("cpu benchmark", (("float32", 1.2e11),), 1.5e10, 1.6e7, 6e10, 3e-6, 2, "prior")
Fusions = frozenset[tuple[OpClass, OpClass]]
PRODUCERS: tuple[OpClass, ...] = ("convolution", "matmul", "normalization", "pointwise")
LOOPS: tuple[OpClass, ...] = ("pointwise", "normalization", "softmax", "reduction")
_POINTWISE = "add.Tensor mul.Tensor relu.default gelu.default rsqrt.default pow.Tensor_Scalar add.Scalar mul.Scalar"
_LAYERS = "native_layer_norm.default _softmax.default native_batch_norm.default mean.dim"
_PRODUCTS = "mm.default addmm.default bmm.default"
_VIEWS = "view.default reshape.default t.default transpose.int permute.default expand.default unsqueeze.default"
_MOVES = "clone.default cat.default _unsafe_view.default"


def _table(*groups: str) -> SupportTable:
    names = " ".join(groups).split()
    return SupportTable({f"aten.{name}": OpRule(dtypes=FLOAT) for name in names})


class TableBackend(Backend):
    """A backend that is only asked, never run."""

    def __init__(
        self, name: str, table: SupportTable | None, traits: Traits, conditions: RegionConditions | None = None
    ) -> None:
        self.name = name  # type: ignore[misc]
        self._table = table
        self._traits = traits
        self._conditions = conditions or RegionConditions()

    def availability(self) -> Availability:
        return Availability(True)

    def fingerprint(self) -> str:
        return f"table {self.name}"

    def traits(self) -> Traits:
        return self._traits

    def conditions(self) -> RegionConditions:
        return self._conditions

    def judge(self, view: OpView) -> Verdict:
        if self._table is None or OpTag.VIEW in view.node.tags:
            return Supported()
        return self._table.judge(view)

    def compile(self, region: Region) -> CompiledRegion:
        raise NotImplementedError(f"{self.name} is a table for benchmarks and compiles nothing")


def five_backends() -> list[Backend]:
    """A graph compiler, a runtime, a convolution library, a layer library and eager."""
    loops: Fusions = frozenset((first, second) for first in LOOPS for second in LOOPS)
    after: Fusions = frozenset({(first, "pointwise") for first in PRODUCERS})
    return [
        TableBackend("runtime", _table(_POINTWISE, _LAYERS, _PRODUCTS, _VIEWS, _MOVES), Traits(fused=after)),
        TableBackend("compiler", None, Traits(fused=loops)),
        TableBackend(
            "convolutions",
            _table("convolution.default native_batch_norm.default relu.default cat.default"),
            Traits(fused=after | {("convolution", "normalization")}),
            RegionConditions(must_contain=frozenset({"convolution"})),
        ),
        TableBackend("layers", _table(_LAYERS, _PRODUCTS, "gelu.default"), Traits(), RegionConditions(minimum_ops=2)),
        TableBackend("eager", None, Traits(keeps_random_stream=True, takes_effects=True)),
    ]


def table_costs() -> RooflineCostModel:
    """Rates of the kind that probes find on a small CPU."""

    def rates(name: str, entry: float, overhead: float, products: float, images: float, loops: float) -> BackendRates:
        table = [("matmul", products), ("convolution", images), ("attention", products)]
        table += [(name, loops) for name in (*LOOPS, "copy", "gather", "other", "pooling")]
        rows = tuple((op_class, "float32", OpRate(overhead, rate)) for op_class, rate in table)
        return BackendRates(name, entry, 1.0e-6, 1.0, rows)  # type: ignore[arg-type]

    listed = [
        rates("runtime", 9e-6, 1.5e-6, 9.6e10, 7.0e10, 6e9),
        rates("compiler", 12e-6, 0.8e-6, 8.8e10, 5.0e10, 1.6e10),
        rates("convolutions", 7e-6, 2.0e-6, 7.0e10, 1.0e11, 8e9),
        rates("layers", 5e-6, 1.0e-6, 1.0e11, 5.0e10, 9e9),
        rates("eager", 0.5e-6, 3.5e-6, 9.0e10, 6.5e10, 7e9),
    ]
    return RooflineCostModel(DEVICE, {item.backend: item for item in listed})


def run(nodes: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """Place graphs of about these sizes.

    Args:
        nodes: graph nodes to aim at; the row states how many there are.
        seed: order of the four architectures in the graph.

    Returns:
        One row per size: ``nodes``, ``backends``, ``seconds``, ``optimal``, ``regions``, and under ``stages`` the
        seconds of each; besides ``bound_gap``, ``width``, ``search`` and ``nodes_by_backend``.
    """
    blocks = list(captured_blocks())
    random.Random(seed).shuffle(blocks)
    return [_row(repeated(blocks, count)) for count in nodes]


def _row(graph: OpGraph) -> dict[str, Any]:
    backends, clock = five_backends(), StepClock()
    start = time.perf_counter()
    plan = place(graph, backends, table_costs(), clock=clock)
    seconds = time.perf_counter() - start
    shares = {backend.name: 0 for backend in backends}
    for region in plan.regions:
        shares[region.backend] += len(region.nodes)
    return {
        "nodes": len(graph.placed_nodes),
        "backends": len(backends),
        "seconds": seconds,
        "optimal": plan.optimal,
        "regions": len(plan.regions),
        "stages": clock.seconds,
        "estimated_s": plan.estimated_s,
        "bound_gap": plan.bound_gap,
        "width": plan.width,
        "search": plan.search,
        "nodes_by_backend": shares,
    }
