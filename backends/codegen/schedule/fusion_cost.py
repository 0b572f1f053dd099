"""Cost of a kernel: what a cluster of stages would take, for comparing it with two kernels.

Place: inside ``grouping``.
Unit: bytes that the whole target moves in the time. Modelled are: memory traffic (a tensor that stays inside an outer
point's fast memory is moved once, or not at all if nothing else reads it), how much of it is strided, arithmetic, how
many outer points there are to keep the target busy, and the cost of starting a kernel.
Non-goals: an estimate in seconds; decisions about correctness.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from mixbackend.backends.codegen.ir.grammar import loops_of
from mixbackend.backends.codegen.ir.stages import Reduce, Stage
from mixbackend.backends.codegen.schedule.alignment import Cluster, OuterLoop
from mixbackend.backends.codegen.schedule.hints import Hints, points
from mixbackend.backends.codegen.schedule.stage_facts import Access, StageFacts
from mixbackend.backends.codegen.targets.target import TargetTraits

GRAIN = 1 << 14
"""Bytes that one point of parallelism has to move before it is worth using."""

LAUNCH = 1 << 15
"""Bytes per point of parallelism that could be moved while a kernel starts."""

STRIDED = 4.0
"""What an element costs that is alone in its vector or cache line, against one among neighbours."""

SECTOR = 32
"""Bytes that memory gives threads of blocks at least, whatever one of them wants."""

TILED = 1.25
"""What an element costs that is read in short runs of neighbours: a tile of outer points."""

JUMP = 1 << 13
"""Bytes that could be read on while memory beyond the caches is taken up at another place."""

LONG_PIECE = 4 * JUMP
"""Bytes from which on that no longer shows."""

COLUMNS = 64
"""Contiguous outer points that stay together where they are such a tile."""


@dataclass(frozen=True)
class Surroundings:
    """What costs depend on beside the cluster.

    Attributes:
        readers: for each target, the stages that read it, as a bit set.
        outputs: targets that leave.
        sizes: estimated bytes of every tensor.
        traits: of the target.
    """

    readers: Mapping[str, int]
    outputs: frozenset[str]
    sizes: Mapping[str, int]
    traits: TargetTraits

    @property
    def lanes(self) -> int:
        """Float32 values of a vector."""
        return max(self.traits.vector_bytes // 4, 1)


@dataclass(frozen=True)
class Cost:
    """What a cluster takes.

    Attributes:
        total: in the unit of the module.
        traffic: bytes moved.
        strain: bytes moved, strided ones counted at what they cost.
        busy: points of parallelism that are used.
    """

    total: float
    traffic: float
    strain: float
    busy: float


def is_private(cluster: Cluster, name: str, around: Surroundings) -> bool:
    """Whether nothing outside the cluster needs a target of it. One without readers is there for what it tells."""
    readers = around.readers.get(name, 0)
    return name not in around.outputs and readers != 0 and not readers & ~cluster.stages


def slice_bytes(cluster: Cluster, name: str, around: Surroundings) -> float:
    """Bytes of a tensor that one outer point touches: all accesses have to divide it in the same way."""
    (_, first), *others = cluster.steps[name]
    points = 1
    for place, step in first.items():
        if all(moves.get(place) == step for _, moves in others):
            points *= max(cluster.outer[place].extent, 1)
    return around.sizes[name] / points


def buffers(cluster: Cluster, around: Surroundings) -> int:
    """Tensors in memory that the cluster touches."""
    targets = cluster.shared.keys()
    return sum(1 for name in targets if not is_private(cluster, name, around)) + sum(
        1 for name in cluster.readings if name not in targets
    )


def kernel_cost(cluster: Cluster, around: Surroundings) -> Cost:
    """Cost in the best of the ways to run it: vectors along inner loops, or along one of the outer loops."""
    moved = _moved(cluster, around)
    work = sum(fact.work for fact in cluster.members) * 4 / around.lanes
    ways = [-1, *(way for way, loop in enumerate(cluster.outer) if _fits(cluster, loop, around))]
    return min((_cost(cluster, moved, work, way, around) for way in ways), key=lambda cost: cost.total)


def _fits(cluster: Cluster, loop: OuterLoop, around: Surroundings) -> bool:
    """Whether fast memory holds what stays inside for the points of two vectors along a loop (see ``tiles``)."""
    slices = (slice_bytes(cluster, name, around) for name in cluster.shared if is_private(cluster, name, around))
    kept = sum(amount for amount in slices if amount <= around.traits.scratch_bytes)
    return kept * min(loop.extent, 2 * around.lanes) <= around.traits.scratch_bytes


def _moved(cluster: Cluster, around: Surroundings) -> list[list[tuple[StageFacts, Access]]]:
    """Accesses that reach memory; of those in one list only the dearest counts."""
    by_tensor: dict[str, list[tuple[StageFacts, Access]]] = defaultdict(list)
    for fact in cluster.members:
        for access in fact.accesses:
            by_tensor[access.tensor].append((fact, access))
    moved: list[list[tuple[StageFacts, Access]]] = []
    for name, accesses in by_tensor.items():
        stays = slice_bytes(cluster, name, around) <= around.traits.scratch_bytes
        if not stays:
            moved.extend([item] for item in accesses)
        elif name not in cluster.shared or not is_private(cluster, name, around):
            moved.append(accesses)
    return moved


def _cost(
    cluster: Cluster,
    moved: list[list[tuple[StageFacts, Access]]],
    work: float,
    way: int,
    around: Surroundings,
) -> Cost:
    """Cost with vectors along the outer loop ``way``, or along inner loops if it is negative."""
    traffic, strain = 0.0, 0.0
    for accesses in moved:
        traffic += max(access.size for _, access in accesses)
        strain += max(access.size * _factor(cluster, fact, access, way, around) for fact, access in accesses)
    points = 1.0 * math.prod(max(loop.extent, 1) for loop in cluster.outer)
    if way >= 0:
        together = COLUMNS if any(map(cluster.inner_loops, cluster.members)) else around.lanes
        points = points / min(together, max(cluster.outer[way].extent, 1))
    width = around.traits.parallel_width
    busy = max(1.0, min(width, points, (strain + work) / GRAIN))
    return Cost(LAUNCH * width + (strain + work) * width / busy, traffic, strain, busy)


def _factor(cluster: Cluster, fact: StageFacts, access: Access, way: int, around: Surroundings) -> float:
    """What an element of an access costs against one among neighbours."""
    inner = cluster.inner_loops(fact)
    if way >= 0:
        vector = next(symbol for symbol in fact.kept if cluster.place.get(symbol) == way)
        stride = access.strides.get(vector, 0)
        is_tile = any(access.strides.get(symbol, 0) for symbol in inner)
        return _alone(access, around) if stride > 1 else TILED if stride == 1 and is_tile else 1.0
    if not inner:
        return STRIDED
    unfilled = min(STRIDED, max(1.0, around.lanes / (2 * fact.extents[inner[0]])))
    is_strided = access.strides.get(inner[0], 0) > 1
    return _alone(access, around) if is_strided else unfilled * _jumps(fact, access, inner, around)


def _alone(access: Access, around: Surroundings) -> float:
    """What an element costs without neighbours."""
    return STRIDED if around.traits.blocks is None else max(STRIDED, SECTOR / access.item_bytes)


def _jumps(fact: StageFacts, access: Access, inner: Sequence[sympy.Symbol], around: Surroundings) -> float:
    """What an element costs where one outer point reads pieces that lie apart, against one long piece."""
    if access.size <= around.traits.scratch_bytes:
        return 1.0
    run = 1
    for step, extent in sorted((access.strides.get(symbol, 0), fact.extents[symbol]) for symbol in inner):
        if step > run:
            piece = run * access.item_bytes
            return 1.0 if piece >= LONG_PIECE else min(STRIDED, 1.0 + JUMP / piece)
        run *= extent if step else 1
    return 1.0


def are_two_passes(readers: Sequence[Stage], longest_column: int | None, hints: Hints) -> bool:
    """Whether a tensor is read by long folds that are one kernel and by one other kernel at most.

    Reading two tensors in each of them moves less than reading the two once, writing what is made of them, and reading
    that twice.

    Args:
        longest_column: see ``simplify``.
    """
    folds = [reader for reader in readers if isinstance(reader, Reduce)]
    passes = {tuple(loop.size for loop in loops_of(reader)) for reader in folds}
    shortest = min((points((loop.size for loop in fold.reduced), hints) for fold in folds), default=0)
    is_long = longest_column is not None and shortest > longest_column
    return is_long and len(passes) + (len(folds) < len(readers)) <= 2
