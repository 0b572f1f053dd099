"""What backends say about whole regions: conditions, ``decline`` and ``region_cost``.

Place: asked by the search about regions under consideration. Input: a problem, a backend number and the region's atoms.
Output: a refusal or a price. A backend that raises has refused with ``backend-error``.
Invariants: answers are pure and remembered; a region that a backend refuses is not legal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

from mixbackend.contracts import Backend, RegionConditions, RegionSketch, TensorMeta, Unsupported
from mixbackend.partitioner.atoms import is_free
from mixbackend.partitioner.problem import Problem


class RegionRules:
    """The region-level half of every backend's contract."""

    def __init__(self, problem: Problem, backends: Sequence[Backend], minimum_ops: Mapping[str, int]) -> None:
        self._problem = problem
        self._backends = backends
        self._conditions = [_at_least(backend.conditions(), minimum_ops.get(backend.name, 1)) for backend in backends]
        self._declines = [type(backend).decline is not Backend.decline for backend in backends]
        self._prices = [type(backend).region_cost is not Backend.region_cost for backend in backends]
        self._position = {node.name: place for place, node in enumerate(problem.graph.placed_nodes)}
        self._refusals: dict[tuple[int, tuple[int, ...]], Unsupported | None] = {}
        self._known_prices: dict[tuple[int, tuple[int, ...]], float | None] = {}

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
        conditions = self._conditions[backend]
        bounded = conditions.minimum_ops > 1 or conditions.minimum_seconds > 0.0 or conditions.must_contain
        return not bounded and not self._declines[backend]

    def refusal(self, backend: int, atoms: Sequence[int], seconds: float) -> Unsupported | None:
        """Why a backend does not take a region, ``None`` if it does.

        Args:
            atoms: of the region, in graph order.
            seconds: of the region under the model, entry included.
        """
        if self.trivial(backend):
            return None
        key = (backend, tuple(atoms))
        if key not in self._refusals:
            self._refusals[key] = self._judge(backend, atoms, seconds)
        return self._refusals[key]

    def _judge(self, backend: int, atoms: Sequence[int], seconds: float) -> Unsupported | None:
        conditions = self._conditions[backend]
        cores = [self._problem.atoms.cores[atom] for atom in atoms]
        nodes = [self._problem.graph.node_by_name[core] for core in cores]
        ops = sum(not is_free(node) for node in nodes)
        if ops < conditions.minimum_ops:
            return Unsupported("region-too-small", f"{ops} ops, needed {conditions.minimum_ops}")
        work = seconds - self._problem.entry[backend]
        if work < conditions.minimum_seconds:
            return Unsupported("region-too-small", f"{work:.3e} s of work, needed {conditions.minimum_seconds:.3e} s")
        present = {node.op for node in nodes} | {self._problem.candidates.views[core].op_class for core in cores}
        if conditions.must_contain and not conditions.must_contain & present:
            return Unsupported("region-condition", f"holds none of {', '.join(sorted(conditions.must_contain))}")
        if not self._declines[backend]:
            return None
        try:
            answer = self._backends[backend].decline(self.sketch(atoms, seconds))
        except Exception as error:  # a plug-in's fault must not stop the planning; the reason is kept
            return Unsupported("backend-error", f"decline raised {type(error).__name__}: {error}")
        if answer is None or isinstance(answer, Unsupported):
            return answer
        return Unsupported("backend-error", f"decline returned {answer!r} instead of Unsupported or None")

    def price(self, backend: int, atoms: Sequence[int], seconds: float) -> float | None:
        """A backend's own price of a region, ``None`` for the model's."""
        if not self._prices[backend]:
            return None
        key = (backend, tuple(atoms))
        if key not in self._known_prices:
            self._known_prices[key] = self._ask_price(backend, atoms, seconds)
        return self._known_prices[key]

    def _ask_price(self, backend: int, atoms: Sequence[int], seconds: float) -> float | None:
        try:
            answer = self._backends[backend].region_cost(self.sketch(atoms, seconds))
        except Exception:  # without a usable price the model's stands
            return None
        usable = isinstance(answer, (int, float)) and answer >= 0.0
        return float(answer) if usable and answer is not None else None

    def sketch(self, atoms: Sequence[int], seconds: float) -> RegionSketch:
        """A region as a backend sees it."""
        problem, inside = self._problem, set(atoms)
        names = {name for atom in atoms for name in (*problem.atoms.members[atom], *problem.atoms.replicas[atom])}
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


def _at_least(conditions: RegionConditions, minimum_ops: int) -> RegionConditions:
    """The backend's conditions with the user's minimum, where that is larger."""
    return replace(conditions, minimum_ops=max(conditions.minimum_ops, minimum_ops))
