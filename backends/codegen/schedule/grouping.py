"""Grouping: which stages become one kernel, and which loops they share.

Place: after ``simplify`` and ``split_loops``, before ``build``.
Input: a ``StageGraph`` and the layouts of its tensors. Output: ``Group``s in execution order, and why others are apart.
Pairs of stages are tried, the most saving first. Two clusters merge if that leaves the graph of clusters without cycles
and the merged kernel costs no more than the two (``fusion_cost``). Stages merge vertically (one reads what the other
makes) and horizontally (both read one tensor, or have equal loops).
Invariants: those of ``check_groups``; the result depends on the graph alone, not on hashing.
Non-goals: computing anything twice, tiling, vectors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from mixbackend.backends.codegen.ir.grammar import loops_of
from mixbackend.backends.codegen.ir.program import Refusal
from mixbackend.backends.codegen.ir.stages import (
    GraphOutput,
    Map,
    Reduce,
    Scan,
    Scatter,
    StageGraph,
    Template,
    is_product,
)
from mixbackend.backends.codegen.schedule.alignment import (
    Cluster,
    OuterLoop,
    align,
    have_common_inputs,
    merged,
    passes,
    single,
)
from mixbackend.backends.codegen.schedule.dependencies import Dependencies
from mixbackend.backends.codegen.schedule.finish_groups import in_order, make_group
from mixbackend.backends.codegen.schedule.fusion_cost import Cost, Surroundings, buffers, kernel_cost
from mixbackend.backends.codegen.schedule.group import Group, Layout
from mixbackend.backends.codegen.schedule.hints import Hints, points
from mixbackend.backends.codegen.schedule.layout import choose_layouts
from mixbackend.backends.codegen.schedule.stage_facts import StageFacts, gather_facts
from mixbackend.backends.codegen.schedule.write_inputs import readers_before_writers
from mixbackend.backends.codegen.targets.target import TargetTraits

MAXIMUM_BUFFERS = 30
"""Tensors in memory that one kernel touches at most."""

MAXIMUM_STAGES = 64
"""Stages of one kernel at most: compile time is finite."""

_SIBLINGS = 4
_WARP = 32
"""Points that threads of blocks take at once."""
_REACH = 32

_Pair = tuple[int, int]


def group_stages(
    graph: StageGraph,
    layouts: Mapping[str, Layout],
    traits: TargetTraits,
    fuel: int | None = None,
    hints: Hints | None = None,
) -> tuple[tuple[Group, ...], tuple[Refusal, ...]]:
    """Fuse stages into kernels.

    Args:
        graph: after ``split_loops``.
        layouts: of all its tensors.
        traits: of the target.
        fuel: number of fusions allowed, ``None`` for all.
        hints: likely values of symbolic sizes.

    Returns:
        Groups in execution order, and for stages that could have been one kernel why they are not.
    """
    search = _Search(graph, layouts, traits, fuel, hints or {})
    search.run()
    clusters = in_order(search.clusters(), search.overwritten())
    groups = tuple(make_group(cluster, search.around) for cluster in clusters)
    return groups, search.refusals()


class _Search:
    """Merges clusters pair by pair until no pair is worth it."""

    def __init__(
        self, graph: StageGraph, layouts: Mapping[str, Layout], traits: TargetTraits, fuel: int | None, hints: Hints
    ) -> None:
        facts = [gather_facts(number, stage, layouts, hints) for number, stage in enumerate(graph.stages)]
        makers = {name: fact.number for fact in facts for name in fact.targets}
        sources = [sorted({makers[name] for name in fact.reads if name in makers}) for fact in facts]
        self._readers = readers_before_writers(graph)
        before = [sorted({*read, *self._readers.get(number, ())}) for number, read in enumerate(sources)]
        self.around = _surroundings(graph, facts, traits, hints)
        self._facts = facts
        self._fuel = fuel
        self._dependencies = Dependencies(before)
        self._cluster = {fact.number: single(fact) for fact in facts}
        self._cost: dict[Cluster, Cost] = {}
        self._tried: set[tuple[Cluster, Cluster]] = set()
        self._reasons: dict[_Pair, str] = {}
        self._pairs = list(dict.fromkeys(_pairs(facts, sources)))

    def run(self) -> None:
        """Try all pairs, the most saving first, until nothing changes any more."""
        gains = {pair: self._first_gain(*pair) for pair in self._pairs}
        order = sorted(self._pairs, key=lambda pair: (-gains[pair], pair))
        fusions = len(order)
        while fusions:
            fusions = sum(self._try(pair) for pair in order)

    def clusters(self) -> list[Cluster]:
        """What is left, by their first stages."""
        return list(self._cluster.values())

    def overwritten(self) -> list[tuple[Cluster, Cluster]]:
        """Pairs of which the first reads an input that the second writes into."""
        group = self._dependencies.group
        numbers = {(group(first), group(last)) for last, readers in self._readers.items() for first in readers}
        return [(self._cluster[first], self._cluster[last]) for first, last in sorted(numbers)]

    def refusals(self) -> tuple[Refusal, ...]:
        """One reason for each two clusters that a pair lies in."""
        found: dict[_Pair, Refusal] = {}
        for first, second in sorted(self._reasons):
            groups = self._dependencies.group(first), self._dependencies.group(second)
            if groups[0] != groups[1] and groups not in found and groups[::-1] not in found:
                one, other = (self._facts[number].targets[0] for number in (first, second))
                found[groups] = Refusal(one, other, self._reasons[first, second])
        return tuple(found.values())

    def _first_gain(self, first: int, second: int) -> float:
        one, other = self._cluster[first], self._cluster[second]
        both = merged(one, other, align(one, other))
        return self._price(one).total + self._price(other).total - kernel_cost(both, self.around).total

    def _try(self, pair: _Pair) -> bool:
        """Merge the clusters of two stages if that is legal and pays; whether it was done."""
        first, second = (self._dependencies.group(number) for number in pair)
        if first == second:
            return False
        one, other = self._cluster[first], self._cluster[second]
        if (one, other) in self._tried:
            return False
        self._tried.add((one, other))
        both, reason = self._merge(one, other, first, second)
        if both is None:
            if _are_related(one, other):
                self._reasons[pair] = reason
            return False
        name = self._dependencies.merge(first, second)
        self._cluster.pop(first)
        self._cluster.pop(second)
        self._cluster[name] = both
        if self._fuel is not None:
            self._fuel -= 1
        return True

    def _merge(self, one: Cluster, other: Cluster, first: int, second: int) -> tuple[Cluster | None, str]:
        if self._dependencies.makes_cycle(first, second):
            return None, "a third kernel would have to run between them"
        if self._overwrites(one, other) or self._overwrites(other, one):
            return None, "one writes into an input that the other reads"
        if _is_apart(one) or _is_apart(other):
            return None, "a tensor that is read often is made first"
        if self.around.traits.blocks and (_scatters(one) or _scatters(other)):
            return None, "updates wait until all points have their first value"
        if len(one.members) + len(other.members) > MAXIMUM_STAGES:
            return None, f"more than {MAXIMUM_STAGES} stages in one kernel"
        both = merged(one, other, align(one, other))
        if self.around.traits.blocks and _folds_rows_of_rows(both):
            return None, "a block of threads would fold rows of rows"
        if self.around.traits.blocks and _walks_points(one, other, both, self.around.traits.parallel_width):
            return None, "points that could run at once would be walked one after the other"
        if not _fits_product(both):
            return None, "a product of matrices takes what follows it element by element, and nothing else"
        objection = self._objection(one, other, both)
        if objection is not None:
            return None, objection
        if self._fuel is not None and self._fuel <= 0:
            return None, "out of fuel"
        return both, ""

    def _overwrites(self, one: Cluster, other: Cluster) -> bool:
        readers = (reader for fact in one.members for reader in self._readers.get(fact.number, ()))
        return any(other.stages >> reader & 1 for reader in readers)

    def _objection(self, one: Cluster, other: Cluster, both: Cluster) -> str | None:
        """Why two clusters are better off as two kernels."""
        have_equal_loops = len(both.outer) == len(one.outer) == len(other.outer)
        if not have_equal_loops and not _are_related(one, other):
            return "nothing passes between them, and their loops differ"
        count = buffers(both, self.around)
        if count > MAXIMUM_BUFFERS:
            return f"one kernel would touch {count} tensors in memory"
        if _multiplies(both) and (passes(one, other) or passes(other, one)):
            # What follows a product costs nothing beside it, and its result is not written in between.
            return None
        apart = self._price(one), self._price(other)
        together = self._price(both)
        if together.total <= apart[0].total + apart[1].total:
            return None
        return _explain(apart, together, both)

    def _price(self, cluster: Cluster) -> Cost:
        if cluster not in self._cost:
            self._cost[cluster] = kernel_cost(cluster, self.around)
        return self._cost[cluster]


def _are_related(one: Cluster, other: Cluster) -> bool:
    """Whether a tensor passes between them or both read one."""
    return passes(one, other) or passes(other, one) or have_common_inputs(one, other)


def _is_apart(cluster: Cluster) -> bool:
    stages = (fact.stage for fact in cluster.members)
    return any(isinstance(stage, Template) or (isinstance(stage, Map) and stage.apart) for stage in stages)


def _scatters(cluster: Cluster) -> bool:
    return any(isinstance(fact.stage, Scatter) for fact in cluster.members)


def _folds_rows_of_rows(cluster: Cluster) -> bool:
    """Whether a stage that folds would have loops inside an outer point beside those it folds along."""
    folds = (fact for fact in cluster.members if isinstance(fact.stage, (Reduce, Scan)))
    return any(loop not in cluster.place for fact in folds for loop in fact.kept)


def _walks_points(one: Cluster, other: Cluster, both: Cluster, width: int) -> bool:
    """Whether maps that only read the same would share so few points that units wait for them.

    A launch takes both as they are (``launches``).
    """
    if passes(one, other) or passes(other, one) or not all(isinstance(fact.stage, Map) for fact in both.members):
        return False
    count = _points(both.outer)
    return count < min(_points(one.outer), _points(other.outer)) and count < _WARP * width


def _points(loops: Sequence[OuterLoop]) -> int:
    return math.prod(loop.extent for loop in loops)


def _multiplies(cluster: Cluster) -> bool:
    return any(is_product(fact.stage) for fact in cluster.members)


def _fits_product(cluster: Cluster) -> bool:
    """Whether a cluster has no product of matrices, or only maps of the product's points beside it."""
    products = [fact for fact in cluster.members if is_product(fact.stage)]
    others = [fact for fact in cluster.members if not is_product(fact.stage)]
    if not products:
        return True
    made = {name for fact in others for name in fact.targets}
    points = all(isinstance(fact.stage, Map) and not cluster.inner_loops(fact) for fact in others)
    return len(products) == 1 and points and made.isdisjoint(products[0].reads)


def _explain(apart: tuple[Cost, Cost], together: Cost, both: Cluster) -> str:
    """What makes a merged kernel slower than two."""
    strain = sum(cost.strain for cost in apart) / max(sum(cost.traffic for cost in apart), 1.0)
    if together.strain > 1.1 * strain * together.traffic:
        return "sharing their loops would make contiguous accesses strided"
    if together.busy < max(cost.busy for cost in apart):
        if not both.outer:
            return "they share no loop, and one after the other would run in one thread"
        number = math.prod(loop.extent for loop in both.outer)
        return f"they share loops of {number} points, too few to run in parallel"
    return "one kernel would move as much memory as two"


def _surroundings(graph: StageGraph, facts: list[StageFacts], traits: TargetTraits, hints: Hints) -> Surroundings:
    readers: dict[str, int] = defaultdict(int)
    for fact in facts:
        for name in fact.reads:
            readers[name] |= 1 << fact.number
    outputs = frozenset(output.tensor for output in graph.outputs if isinstance(output, GraphOutput))
    sizes = {name: points(type_.sizes, hints) * type_.dtype.itemsize for name, type_ in graph.types}
    return Surroundings(dict(readers), outputs, sizes, traits)


def _pairs(facts: list[StageFacts], sources: list[list[int]]) -> Iterator[_Pair]:
    """Pairs of stages worth trying: maker and reader, readers of one tensor, stages with equal loops."""
    for fact, read in zip(facts, sources, strict=True):
        yield from ((source, fact.number) for source in read)
    readers: dict[str, list[int]] = defaultdict(list)
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for fact in facts:
        for name in fact.reads:
            readers[name].append(fact.number)
        form = (type(fact.stage), *(loop.size for loop in loops_of(fact.stage)))
        alike[form].append(fact.number)
    for numbers in readers.values():
        for place, first in enumerate(numbers):
            yield from ((first, second) for second in numbers[place + 1 : place + 1 + _SIBLINGS])
    for numbers in alike.values():
        for place, first in enumerate(numbers):
            yield from ((first, second) for second in numbers[place + 1 : place + 3] if second - first <= _REACH)


__all__ = ["choose_layouts", "group_stages"]
