"""Vectorise: which loop of a nest becomes vector instructions, judged by how memory is walked along it.

Place: in ``build``, asked by ``tiles`` for every way to arrange the loops, then applied to the arrangement chosen.
Input: nests. Output: estimates per point, and nests with one loop marked.
Costs are in vector instructions per vector of points: 1 for a contiguous access, a lane's worth of instructions for a
strided one, a little for a broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from mixbackend.backends.codegen.ir.grammar import loops_of
from mixbackend.backends.codegen.ir.kernel import Accumulate, KernelLoop, LoopMode, Nest, Statement
from mixbackend.backends.codegen.ir.scalar import cost_of
from mixbackend.backends.codegen.schedule.draft import Access, accesses_of, folds_positions, points_of
from mixbackend.backends.codegen.schedule.hints import Hints
from mixbackend.backends.codegen.targets.target import TargetTraits

STORE_WEIGHT = 1.5
FAR_STORE = 3.0
"""How much dearer lanes are that are stored far from each other."""

BROADCAST_COST = 0.1
ACROSS_LANES = 6.0
"""Cost of folding the lanes of one accumulator at the end of a vectorised reduction."""

LOOP_START = 0.5
"""Vectors of points that could be done in the time it takes to start a loop."""

LINE = 64
"""Bytes of a cache line: steps below it find their neighbours there."""

LARGEST_UNROLLED = 16
"""Points of reduced loops that are written out one by one."""

NEAR_STRIDE = 4
"""Steps of windows over contiguous memory."""


@dataclass(frozen=True)
class Costs:
    """What estimates are made from.

    Attributes:
        lanes: float32 values of a vector.
        dtypes: storage types of buffers.
    """

    lanes: int
    dtypes: Mapping[str, torch.dtype]
    hints: Hints

    @staticmethod
    def of(traits: TargetTraits, dtypes: Mapping[str, torch.dtype], hints: Hints) -> Costs:
        """For a target."""
        return Costs(max(traits.vector_bytes // 4, 1), dtypes, hints)

    def nest(self, nest: Nest, vector: KernelLoop | None) -> float:
        """Vector instructions of all points of a nest, per outer point and per lane.

        Args:
            vector: the loop that is a vector, one of the nest's or an outer loop that would move inside; in the latter
                case the cost is per point of it.
        """
        kept = points_of(nest.loops, self.hints)
        folded = points_of(nest.reduced, self.hints)
        is_reduced = vector is not None and vector in nest.reduced
        body = self._statements(nest.body, vector)
        finish = self._statements(nest.finish, None if is_reduced else vector)
        folds = sum(1 for item in nest.body if isinstance(item, Accumulate)) if is_reduced else 0
        return kept * (folded * body + finish + folds * ACROSS_LANES * self.lanes)

    def best(self, nest: Nest, more: Iterable[KernelLoop] = ()) -> tuple[float, KernelLoop | None]:
        """The cheapest loop to vectorise, and its cost; ``None`` where none can or pays.

        Args:
            more: loops that are not the nest's yet.
        """
        choices: list[tuple[float, KernelLoop | None]] = [(self.nest(nest, None), None)]
        choices += [(self.nest(nest, loop), loop) for loop in (*candidates(nest), *more)]
        return min(choices, key=lambda choice: choice[0])

    def _statements(self, statements: Iterable[Statement], vector: KernelLoop | None) -> float:
        statements = tuple(statements)
        total = sum(self._access(access, vector) for access in accesses_of(statements))
        operations = cost_of(*statements)
        if vector is None:
            return (total + operations) * self.lanes
        return (total + operations) * self._filling(vector)

    def _access(self, access: Access, vector: KernelLoop | None) -> float:
        weight = STORE_WEIGHT if access.write else 1.0
        width = self.dtypes[access.buffer].itemsize / 4
        if vector is None:
            return weight
        stride = access.stride(vector.index)
        if stride == 0:
            return BROADCAST_COST
        if stride == 1:
            return weight * width
        if stride is None:
            return weight * self.lanes
        if stride.is_Integer and abs(int(stride)) * self.dtypes[access.buffer].itemsize < LINE:
            return weight * self.lanes * 0.5
        # Far from each other, lanes that are written need a cache line each, which is read and written whole.
        return weight * self.lanes * (FAR_STORE if access.write else 1.0)

    def _filling(self, loop: KernelLoop) -> float:
        """How much more instructions there are than full vectors: lanes of the last one, and the start of the loop."""
        extent = max(points_of((loop,), self.hints), 1)
        return (-(-extent // self.lanes) + LOOP_START) * self.lanes / extent


def candidates(nest: Nest) -> tuple[KernelLoop, ...]:
    """Loops of a nest that may become vectors."""
    reduced = nest.reduced[-1:] if folds_positions(nest) else nest.reduced
    return (*(loop for loop in nest.loops if loop.mode != "ordered"), *reduced)


def with_vector(nest: Nest, costs: Costs) -> Nest:
    """Mark the cheapest loop as the vector, and short reductions around it as unrolled."""
    _, vector = costs.best(nest)
    short = [loop for loop in nest.reduced if loop is not vector]
    unrolled = vector not in nest.reduced and _is_short(short) and _is_near(nest, vector)

    def mode(loop: KernelLoop) -> LoopMode:
        if loop is vector:
            return "vector"
        return "unrolled" if unrolled and loop in short else loop.mode

    loops, reduced = (tuple(replace(loop, mode=mode(loop)) for loop in part) for part in (nest.loops, nest.reduced))
    return replace(nest, loops=loops, reduced=reduced)


def vector_of(nest: Nest) -> sympy.Symbol | None:
    """Index of the loop marked as the vector."""
    return next((loop.index for loop in loops_of(nest) if loop.mode == "vector"), None)


def _is_near(nest: Nest, vector: KernelLoop | None) -> bool:
    """Whether neighbours along the vector share cache lines; gathering lanes is too much code to write it out often."""
    if vector is None:
        return True
    strides = [access.stride(vector.index) for access in accesses_of(nest.body)]
    return all(stride is not None and stride.is_Integer and abs(int(stride)) <= NEAR_STRIDE for stride in strides)


def _is_short(loops: list[KernelLoop]) -> bool:
    return (
        all(loop.extent.is_Integer for loop in loops)
        and sympy.Mul(*(loop.extent for loop in loops)) <= LARGEST_UNROLLED
    )
