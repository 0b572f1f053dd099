"""Counterfactuals: for regions and nodes of a plan, every other backend with its price or its refusal.

Place: last of the partitioner; handed to reports, which ask when they are read. Input: a ``Question`` (what ``place``
was given, and the plan). Output: ``RegionAlternatives`` and ``NodeAlternatives`` values.
Invariants: nothing happens before the first question; answers are pure. The alternatives of regions are bounded; they
and the seconds of ops are made together and kept, those of nodes are made for each question. Graphs are placed again
only where ``placed`` allows it.
Raises ``PlacementError`` if the plan cannot be priced with the backends of now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mixbackend.contracts import Backend, PlacementError
from mixbackend.partitioner.alternatives import (
    Alternative,
    RegionAlternatives,
    as_alternative,
    margin,
    refusal_of,
    region_alternatives,
)
from mixbackend.partitioner.breakdown import Parts, parts_of
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement
from mixbackend.partitioner.explain import Question
from mixbackend.partitioner.moves import Move, Mover
from mixbackend.partitioner.placement import make_problem
from mixbackend.partitioner.plan_to_placement import placement_of_plan
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.single import labels_on
from mixbackend.partitioner.step_clock import StepClock, collection_paused


@dataclass(frozen=True, slots=True)
class NodeOption:
    """One backend for one node.

    Attributes:
        alternative: the node goes there (with its match, where only a match can run it), and all else stays.
        along: names of the other ops that go with it: its match cannot do without them.
        parts: what its estimate would be made of there; ``None`` if it cannot go.
        adapted_s: seconds by which the plan's energy rises if the node is pinned there and all else may follow; found
            by the search, so that a cheaper plan may exist where that is not exact. ``None`` if it was not asked for
            or no such plan exists.
    """

    alternative: Alternative
    along: tuple[str, ...] = ()
    parts: Parts | None = None
    adapted_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeAlternatives:
    """Why one node is where it is.

    Attributes:
        node: its name.
        follows: name of the op that it is placed with, itself if it computes something.
        region: id in the plan.
        backend: that runs it.
        parts: what its estimate is made of there.
        options: the other backends, in the user's order.
    """

    node: str
    follows: str
    region: str
    backend: str
    parts: Parts
    options: tuple[NodeOption, ...]

    @property
    def margin_s(self) -> float | None:
        """See ``alternatives.margin``."""
        return margin([option.alternative for option in self.options])


@dataclass(frozen=True)
class _Priced:
    question: Question
    problem: Problem
    rules: RegionRules
    placement: Placement


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """See the module's docstring.

    Attributes:
        question: with all backends that alternatives may use.
        planned_with: the backends that the plan was made with, if those are fewer: what backends can run decides what
            is one piece, and the pieces of all of them need not fit the plan.
    """

    question: Question
    planned_with: Sequence[Backend] = ()

    @property
    def regions(self) -> tuple[RegionAlternatives, ...]:
        """The costliest regions of the plan, in its order, as many as a bounded amount of work allows."""
        return self._read[0]

    def nodes(self, names: Sequence[str], placed: int = 0) -> tuple[NodeAlternatives, ...]:
        """Some nodes, in the given order.

        Args:
            names: of placed nodes of the graph.
            placed: so many (node, backend) pairs are placed again with all else free, in this order.
        """
        with collection_paused(len(self.question.graph.nodes)):
            priced = self._priced()
            teller = _Teller(priced, placed)
            return tuple(teller.node(name) for name in names)

    def seconds(self) -> dict[str, float]:
        """What each op's estimate adds up to, by the name of the node that computes it; their sum is the graph's."""
        return dict(self._read[1])

    @cached_property
    def _read(self) -> tuple[tuple[RegionAlternatives, ...], dict[str, float]]:
        """What reports read of a plan, kept without the prices that it was made of: these are many times as large."""
        with collection_paused(len(self.question.graph.nodes)):
            priced = self._priced()
            return _regions(priced), _seconds(priced)

    def _priced(self) -> _Priced:
        try:
            return _price(self.question)
        except PlacementError:
            if not self.planned_with:
                raise
            return _price(replace(self.question, backends=self.planned_with))


def _price(question: Question) -> _Priced:
    problem = make_problem(
        question.graph,
        question.backends,
        question.costs,
        question.preferences,
        question.exclusions,
        question.pinned or {},
        StepClock(),
    )
    rules = RegionRules(problem, question.backends, question.minimum_ops or {})
    return _Priced(question, problem, rules, placement_of_plan(problem, question.plan))


def _regions(priced: _Priced) -> tuple[RegionAlternatives, ...]:
    found = region_alternatives(priced.problem, priced.placement, priced.rules)
    planned = priced.question.plan.regions
    return tuple(RegionAlternatives(planned[number].id, found[number]) for number in sorted(found))


def _seconds(priced: _Priced) -> dict[str, float]:
    problem, costs = priced.problem, priced.question.costs
    atoms = range(len(priced.placement.labels))
    return {problem.atoms.cores[atom]: parts_of(problem, priced.placement, atom, costs).total_s for atom in atoms}


class _Teller:
    """Answers about single nodes of one priced plan."""

    def __init__(self, priced: _Priced, placed: int) -> None:
        self._priced = priced
        self._problem = priced.problem
        self._mover = Mover(priced.problem, priced.placement, priced.rules)
        self._left = placed
        self._answers: dict[int, tuple[Parts, tuple[NodeOption, ...]]] = {}

    def node(self, name: str) -> NodeAlternatives:
        problem, placement = self._problem, self._priced.placement
        atom = problem.atoms.atom_of[name]
        if atom not in self._answers:
            self._answers[atom] = self._parts(placement, atom), self._options(atom)
        parts, options = self._answers[atom]
        region = self._priced.question.plan.regions[placement.regions[atom]]
        return NodeAlternatives(name, problem.atoms.cores[atom], region.id, region.backend, parts, options)

    def _options(self, atom: int) -> tuple[NodeOption, ...]:
        problem = self._problem
        own = problem.labels[atom][self._priced.placement.labels[atom]].backend
        return tuple(self._option(atom, slot) for slot in range(len(problem.backends)) if slot != own)

    def _option(self, atom: int, slot: int) -> NodeOption:
        refused = refusal_of(self._problem, atom, slot)
        wanted = self._ways(atom, slot)
        if not wanted:
            return NodeOption(Alternative(self._problem.backends[slot], None, 0, refused))
        moves = [(labels, self._mover.move(labels)) for labels in wanted]
        labels, move = min(moves, key=lambda item: _rank(item[1]))
        alternative = as_alternative(self._problem, slot, labels, move)
        parts = None if move.placement is None else self._parts(move.placement, atom)
        along = tuple(self._problem.atoms.cores[other] for other in sorted(labels) if other != atom)
        return NodeOption(alternative, along, parts, self._adapted(atom, slot))

    def _ways(self, atom: int, slot: int) -> list[Mapping[int, int]]:
        """Labels that bring an atom to a backend: alone, in a match there, or with all of the match it is in now."""
        problem, present = self._problem, self._priced.placement.labels
        plain = problem.plain(atom, slot)
        ways: list[Mapping[int, int]] = [] if plain is None else [{atom: plain}]
        for label in problem.labels[atom]:
            if label.backend == slot and label.claim >= 0:
                holders = problem.atoms_of_claim[label.claim]
                ways.append({holder: problem.label_numbers[holder][label] for holder in holders})
        claim = problem.labels[atom][present[atom]].claim
        partners = problem.atoms_of_claim[claim] if claim >= 0 else ()
        together = labels_on(problem, partners, slot)
        return [*ways, together] if partners and len(together) == len(partners) else ways

    def _adapted(self, atom: int, slot: int) -> float | None:
        if self._left <= 0:
            return None
        self._left -= 1
        pins = {self._problem.atoms.cores[atom]: self._problem.backends[slot]}
        try:
            return self._priced.question.placed(pinned=pins).estimated_s - self._mover.seconds
        except PlacementError:
            return None

    def _parts(self, placement: Placement, atom: int) -> Parts:
        return parts_of(self._problem, placement, atom, self._priced.question.costs)


def _rank(move: Move) -> float:
    return float("inf") if move.change_s is None else move.change_s
