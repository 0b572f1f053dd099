"""What backends say about whole regions: conditions, ``decline`` and ``region_cost``.

Place: asked by the search about regions under consideration. Input: a problem, a backend number and the region's atoms.
Output: a refusal or a price.
Invariants: answers are pure and remembered, each with all that it depends on; a region that a backend refuses is not
legal, nor is one of a backend that takes no effects where it writes into storage that several of its inputs share:
there only what writes has to leave. A backend that does not mix devices has regions of one device each. What the user
requires outranks what a backend finds worth running: a region with an op that a rule requires for its backend is
refused for what the backend cannot do, never for being too small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from mixbackend.contracts import (
    Backend,
    OpNode,
    OpTag,
    RegionConditions,
    RegionSketch,
    TensorMeta,
    Unsupported,
    entangled_writes,
)
from mixbackend.contracts.asked import asked_all
from mixbackend.partitioner.atoms import is_free
from mixbackend.partitioner.problem import Problem

ENTANGLED = Unsupported("effect", "the region writes into storage that several of its inputs share")

MIXED = Unsupported("device", "the region holds ops of several devices")

NOT_WORTH_IT = frozenset({"declined", "region-too-small"})
"""Codes of refusals of regions that a backend could run; a rule that requires it outranks them."""


class RegionRules:
    """The region-level half of every backend's contract."""

    def __init__(self, problem: Problem, backends: Sequence[Backend], minimum_ops: Mapping[str, int]) -> None:
        self._problem = problem
        self._backends = asked_all(backends)
        self._conditions = [_as_wanted(item.conditions(), minimum_ops.get(item.name)) for item in self._backends]
        self._declines = [item.stated.declines for item in self._backends]
        self._prices = [item.stated.prices for item in self._backends]
        self._position = {node.name: place for place, node in enumerate(problem.graph.placed_nodes)}
        pairs = zip(self._conditions, self._declines, strict=True)
        self._unconditional = [not declines and not _is_bounded(conditions) for conditions, declines in pairs]
        self._takes_effects = [item.traits().takes_effects for item in self._backends]
        self._writers = _writers_of_shared_storage(problem)
        self._mixes_devices = [item.traits().mixes_devices for item in self._backends]
        self._device_of = [_device_of(problem, atom) for atom in range(len(problem.atoms.cores))]
        self._has_devices = len({*self._device_of} - {None}) > 1
        self._lacks: dict[tuple[int, tuple[int, ...]], Unsupported | None] = {}
        self._declined: dict[tuple[int, tuple[int, ...], float], Unsupported | None] = {}
        self._known_prices: dict[tuple[int, tuple[int, ...], float], float | None] = {}

    @property
    def pricing(self) -> tuple[int, ...]:
        """Numbers of the backends that may price whole regions themselves."""
        return tuple(slot for slot, prices in enumerate(self._prices) if prices)

    def modelled(self, backends: frozenset[int]) -> RegionRules:
        """The same rules where regions of these backends cost what the model says."""
        rules = copy(self)
        rules._prices = [prices and slot not in backends for slot, prices in enumerate(self._prices)]
        return rules

    def trivial(self, backend: int) -> bool:
        """Whether a backend takes any region whatever."""
        if self._has_devices and not self._mixes_devices[backend]:
            return False
        return self._unconditional[backend] and (self._takes_effects[backend] or not self._writers)

    def of_other_devices(self, backend: int, atoms: Sequence[int]) -> list[int]:
        """Atoms of a region that its backend may not have there: they are not of the device that the graph works on,
        and others are; none of a backend that mixes devices."""
        if not self._has_devices or self._mixes_devices[backend]:
            return []
        devices = {self._device_of[atom] for atom in atoms} - {None}
        if len(devices) < 2:
            return []
        main = self._problem.graph.device_type
        kept = main if main in devices else min(map(str, devices))
        return [atom for atom in atoms if self._device_of[atom] not in (kept, None)]

    def misplaced(self, backend: int, atoms: Sequence[int]) -> list[int]:
        """Atoms that alone have to leave a region to make it legal; empty where there are none, or all have to."""
        return self.of_other_devices(backend, atoms) or self.entangled(backend, atoms)

    def entangled(self, backend: int, atoms: Sequence[int]) -> list[int]:
        """Atoms of a region that its backend may not have there: they write into storage that several inputs share."""
        if self._takes_effects[backend] or self._writers.isdisjoint(atoms):
            return []
        writes = entangled_writes(self._problem.graph, self._names(atoms))
        return sorted({self._problem.atoms.atom_of[name] for name in writes})

    def refusal(self, backend: int, atoms: Sequence[int], seconds: float) -> Unsupported | None:
        """Why a backend does not take a region, ``None`` if it does.

        Args:
            atoms: of the region, in graph order.
            seconds: of the region under the model, entry included.
        """
        if self.of_other_devices(backend, atoms):
            return MIXED
        if self.entangled(backend, atoms):
            return ENTANGLED
        if self._unconditional[backend]:
            return None
        required = any((atom, backend) in self._problem.required for atom in atoms)
        if not required:
            lack = self._lack(backend, atoms) or self._too_little(backend, seconds)
            if lack is not None:
                return lack
        declined = self._decline(backend, atoms, seconds)
        return None if required and declined is not None and declined.code in NOT_WORTH_IT else declined

    def _lack(self, backend: int, atoms: Sequence[int]) -> Unsupported | None:
        """What a region lacks by the backend's conditions, whatever it takes."""
        key = (backend, tuple(atoms))
        if key not in self._lacks:
            self._lacks[key] = self._lack_of(backend, [self._problem.atoms.cores[atom] for atom in atoms])
        return self._lacks[key]

    def _lack_of(self, backend: int, cores: Sequence[str]) -> Unsupported | None:
        conditions = self._conditions[backend]
        nodes = [self._problem.graph.node_by_name[core] for core in cores]
        ops = sum(_weight(node) for node in nodes)
        if ops < conditions.minimum_ops:
            return Unsupported("region-too-small", f"{ops} ops, needed {conditions.minimum_ops}")
        present = {node.op for node in nodes} | {self._problem.candidates.views[core].op_class for core in cores}
        if conditions.must_contain and not conditions.must_contain & present:
            return Unsupported("region-condition", f"holds none of {', '.join(sorted(conditions.must_contain))}")
        return None

    def _too_little(self, backend: int, seconds: float) -> Unsupported | None:
        """Whether a region of so many seconds is too little work; the same atoms take longer beside other regions."""
        work, least = seconds - self._problem.entry[backend], self._conditions[backend].minimum_seconds
        if work >= least:
            return None
        return Unsupported("region-too-small", f"{work:.3e} s of work, needed {least:.3e} s")

    def _decline(self, backend: int, atoms: Sequence[int], seconds: float) -> Unsupported | None:
        if not self._declines[backend]:
            return None
        key = (backend, tuple(atoms), seconds)
        if key not in self._declined:
            self._declined[key] = self._backends[backend].decline(self.sketch(atoms, seconds))
        return self._declined[key]

    def price(self, backend: int, atoms: Sequence[int], seconds: float) -> float | None:
        """A backend's own price of a region, ``None`` for the model's."""
        if not self._prices[backend]:
            return None
        key = (backend, tuple(atoms), seconds)
        if key not in self._known_prices:
            self._known_prices[key] = self._backends[backend].region_cost(self.sketch(atoms, seconds))
        return self._known_prices[key]

    def sketch(self, atoms: Sequence[int], seconds: float) -> RegionSketch:
        """A region as a backend sees it."""
        problem, inside, names = self._problem, set(atoms), self._names(atoms)
        ordered = sorted(names, key=self._position.__getitem__)
        inputs: dict[str, TensorMeta] = {}
        for name in ordered:
            for item in problem.candidates.views[name].inputs:
                if item.name not in names and isinstance(item.meta, TensorMeta):
                    inputs[item.name] = item.meta
        outputs: list[TensorMeta] = []
        for number in dict.fromkeys(number for atom in atoms for number in problem.values_of[atom]):
            value = problem.values[number]
            leaves = value.output or any(use.atom not in inside for use in value.uses)
            meta = problem.graph.node_by_name[value.name].outputs[0]
            if value.producer in inside and leaves and isinstance(meta, TensorMeta):
                outputs.append(meta)
        views = tuple(problem.candidates.views[name] for name in ordered)
        return RegionSketch(views, tuple(inputs.values()), tuple(outputs), seconds)

    def _names(self, atoms: Iterable[int]) -> frozenset[str]:
        """The nodes of a region, copies included."""
        members, replicas = self._problem.atoms.members, self._problem.atoms.replicas
        return frozenset(name for atom in atoms for name in (*members[atom], *replicas[atom]))


def _device_of(problem: Problem, atom: int) -> str | None:
    """Kind of device that an atom makes its tensors on; ``None`` if it makes none."""
    outputs = problem.graph.node_by_name[problem.atoms.cores[atom]].outputs
    return next((meta.device.type for meta in outputs if isinstance(meta, TensorMeta)), None)


def _writers_of_shared_storage(problem: Problem) -> frozenset[int]:
    """Atoms that are entangled in some region: they write into storage that several values share which are read."""
    graph, storage = problem.graph, problem.graph.storage_of
    writes = [node.name for node in graph.placed_nodes if OpTag.MUTATES in node.tags]
    if not writes:
        return frozenset()
    read = {source for node in graph.placed_nodes for source in node.references()}
    shared = Counter(storage.get(source, source) for source in read)
    return frozenset(problem.atoms.atom_of[name] for name in writes if shared[storage.get(name, name)] > 1)


def _is_bounded(conditions: RegionConditions) -> bool:
    """Whether some region does not meet these conditions."""
    return conditions.minimum_ops > 1 or conditions.minimum_seconds > 0.0 or bool(conditions.must_contain)


def _weight(node: OpNode) -> int:
    """How many ops a node counts for: those of subgraphs that it carries, one otherwise, none if it moves nothing."""
    return sum(len(body.views) for body in node.bodies) or int(not is_free(node))


def _as_wanted(conditions: RegionConditions, minimum_ops: int | None) -> RegionConditions:
    """The backend's conditions with the user's number of ops, where he named one."""
    return conditions if minimum_ops is None else replace(conditions, minimum_ops=minimum_ops)
