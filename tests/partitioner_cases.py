"""Random op graphs, backends whose verdicts are tables, and cost models made of random numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from mixbackend.contracts import (
    TORCH_POOL,
    Availability,
    Backend,
    CompiledRegion,
    CostModel,
    Estimate,
    GraphInput,
    InputRole,
    NodeRef,
    OpGraph,
    OpNode,
    OpTag,
    OpView,
    Pattern,
    Region,
    RegionConditions,
    RegionSketch,
    Supported,
    TensorMeta,
    Traits,
    Unsupported,
    Verdict,
)

CPU = torch.device("cpu")
POINTWISE = "aten.relu.default"
MATMUL = "aten.mm.default"
SOFTMAX = "aten._softmax.default"
BINARY = "aten.add.Tensor"


def meta(size: int = 8) -> TensorMeta:
    """A contiguous float32 vector."""
    return TensorMeta((size,), (1,), torch.float32, CPU)


def node(name: str, op: str, *sources: str, size: int = 8, tags: tuple[OpTag, ...] = (), **more: Any) -> OpNode:
    """An op on values by name."""
    arguments = tuple((f"arg{index}", NodeRef(source)) for index, source in enumerate(sources))
    return OpNode(name, op, arguments, (meta(size),), tags=frozenset(tags), **more)


def graph(
    nodes: list[OpNode], outputs: list[str], inputs: int = 1, effects: tuple[tuple[str, str], ...] = (), **more: Any
) -> OpGraph:
    """A graph with inputs ``x0``, ``x1``... and weights ``w0``, ``w1``..."""
    places = [GraphInput(f"x{index}", meta(), InputRole.ACTIVATION) for index in range(inputs)]
    places += [GraphInput(f"w{index}", meta(), InputRole.PARAMETER) for index in range(inputs)]
    return OpGraph("inference-0", "inference", tuple(places), tuple(nodes), tuple(outputs), effects, **more)


@dataclass
class TableBackend(Backend):
    """Answers from tables."""

    name: str  # type: ignore[misc]
    refused: frozenset[str] = frozenset()
    costs: dict[str, float] = field(default_factory=dict)
    declared: Traits = field(default_factory=Traits)
    wanted: RegionConditions = field(default_factory=RegionConditions)
    claims: tuple[Pattern, ...] = ()
    asked: list[str] = field(default_factory=list)

    def availability(self) -> Availability:
        return Availability(True)

    def fingerprint(self) -> str:
        return self.name

    def traits(self) -> Traits:
        return self.declared

    def conditions(self) -> RegionConditions:
        return self.wanted

    def patterns(self) -> tuple[Pattern, ...]:
        return self.claims

    def judge(self, view: OpView) -> Verdict:
        self.asked.append(view.node.name)
        key = view.node.module or view.node.name
        if key in self.refused or view.op in self.refused:
            return Unsupported("unknown-op", f"no rule for {view.op}")
        return Supported(self.costs.get(view.node.module_class))

    def compile(self, region: Region) -> CompiledRegion:
        raise NotImplementedError(self.name)


class DecliningBackend(TableBackend):
    """Refuses every region."""

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        return Unsupported("declined", f"{len(sketch.views)} ops")


def eager(name: str = "eager", **more: Any) -> TableBackend:
    """The backend that runs everything."""
    return TableBackend(name, declared=Traits(keeps_random_stream=True, takes_effects=True), **more)


@dataclass
class TableCosts(CostModel):
    """Every price is a number drawn once; ``op`` depends on the node's module class, as signatures see it."""

    seed: int = 0
    entries: dict[str, float] = field(default_factory=dict)
    switches: dict[str, float] = field(default_factory=dict)
    ops: dict[tuple[str, str], float] = field(default_factory=dict)
    reads: float = 1.0
    writes: float = 1.0
    crossings: float = 1.0

    def _draw(self, *key: object) -> float:
        return random.Random(repr((self.seed, *key))).choice([0.0, 0.5, 1.0, 2.0, 3.0, 5.0])

    def op(self, backend: str, view: OpView) -> Estimate:
        fixed = self.ops.get((backend, view.node.module_class))
        return Estimate(2 * self._draw("op", backend, view.node.module_class) if fixed is None else fixed, "prior")

    def read(self, backend: str, meta: TensorMeta) -> float:
        return self.reads * self._draw("read", backend, str(meta))

    def write(self, backend: str, meta: TensorMeta) -> float:
        return self.writes * self._draw("write", backend, str(meta))

    def crossing(self, producer: str, consumer: str, meta: TensorMeta) -> float:
        return self.crossings * self._draw("crossing", producer, consumer, str(meta))

    def entry(self, backend: str) -> float:
        return self.entries.get(backend, self._draw("entry", backend))

    def switch(self, backend: str) -> float:
        return self.switches.get(backend, 0.0)


FUSIONS = [
    frozenset(),
    frozenset({("pointwise", "pointwise")}),
    frozenset({("pointwise", "pointwise"), ("matmul", "pointwise"), ("pointwise", "softmax")}),
]


def random_case(seed: int, most: int = 12, backends: int = 3) -> tuple[OpGraph, list[TableBackend], TableCosts]:
    """A random graph with views, weights, effects and several outputs; random verdicts and costs."""
    draw = random.Random(seed)
    count = draw.randint(1, most)
    nodes: list[OpNode] = []
    names = ["x0", "x1"]
    loose = draw.choice([1, 2, 4])
    for index in range(count):
        kind = draw.random()
        size = draw.choice([4, 8])
        recent = names[-loose - 1 :] if draw.random() < 0.8 else names
        unique = {"module_class": f"C{index}"}
        if kind < 0.12:
            nodes.append(node(f"n{index}", "aten.view.default", draw.choice(names), size=size, tags=(OpTag.VIEW,)))
        elif kind < 0.2:
            nodes.append(node(f"n{index}", "aten.full.default", size=size, **unique))
        elif kind < 0.55:
            nodes.append(node(f"n{index}", BINARY, draw.choice(recent), draw.choice(names), size=size, **unique))
        else:
            op = draw.choice([POINTWISE, MATMUL, SOFTMAX])
            nodes.append(node(f"n{index}", op, draw.choice(recent), draw.choice(["w0", "w1"]), size=size, **unique))
        names.append(f"n{index}")
    used = {reference for item in nodes for reference in item.references()}
    outputs = [item.name for item in nodes if item.name not in used or draw.random() < 0.1]
    effects = ()
    if count > 3 and draw.random() < 0.3:
        first, second = sorted(draw.sample(range(count), 2))
        effects = ((f"n{first}", f"n{second}"),)
    pools = [draw.choice([TORCH_POOL, TORCH_POOL, "own"]) for _ in range(backends - 1)]
    # Every now and then somebody takes everything, so that plans may stay on one pool.
    refusing = [0.0 if draw.random() < 0.2 else 0.3 for _ in range(backends - 1)]
    listed = [
        TableBackend(
            f"b{slot}",
            refused=frozenset(item.name for item in nodes if draw.random() < refusing[slot]),
            declared=Traits(fused=draw.choice(FUSIONS), thread_pool=pools[slot]),
        )
        for slot in range(backends - 1)
    ]
    switches = {f"b{slot}": draw.choice([0.5, 2.0]) for slot, pool in enumerate(pools) if pool != TORCH_POOL}
    return graph(nodes, outputs, inputs=2, effects=effects), [*listed, eager()], TableCosts(seed, switches=switches)
