"""What the tests of counterfactuals share: priced cases, and the cheapest plan with one change by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
from brute_force import acyclic, partitions
from partitioner_cases import TableBackend, TableCosts, random_case

from mixbackend.contracts import OpGraph, Plan
from mixbackend.partitioner import place
from mixbackend.partitioner.conditions import RegionRules
from mixbackend.partitioner.energy import Placement, true_energy
from mixbackend.partitioner.placement import make_problem
from mixbackend.partitioner.plan_to_placement import placement_of_plan
from mixbackend.partitioner.problem import Problem
from mixbackend.partitioner.step_clock import StepClock


@dataclass(frozen=True)
class Case:
    """A placed graph with all its prices."""

    graph: OpGraph
    backends: list[TableBackend]
    costs: TableCosts
    plan: Plan
    problem: Problem
    placement: Placement
    rules: RegionRules

    def backend(self, atom: int, placement: Placement) -> int:
        """Number of the backend that an atom is on."""
        return self.problem.labels[atom][placement.labels[atom]].backend


def priced(graph: OpGraph, backends: list[TableBackend], costs: TableCosts, plan: Plan | None = None) -> Case:
    """A case, placed at least cost unless a plan is given."""
    plan = place(graph, backends, costs) if plan is None else plan
    problem = make_problem(graph, backends, costs, (), frozenset(), {}, StepClock())
    return Case(
        graph, backends, costs, plan, problem, placement_of_plan(problem, plan), RegionRules(problem, backends, {})
    )


def random_priced(seed: int, most: int = 12, backends: int = 3) -> Case:
    """A random case."""
    return priced(*random_case(seed, most, backends))


def problems_of(problem: Problem, placement: Placement) -> list[str]:
    """What is wrong with a placement: regions on two backends, in pieces, in a circle, matches torn apart."""
    regions, labels = placement.regions, placement.labels
    near = nx.Graph((a, b) for a, b in (*problem.links, *problem.edges) if regions[a] == regions[b])
    near.add_nodes_from(range(problem.size))
    wrong = [] if acyclic(problem, regions) else ["the regions depend on each other in a circle"]
    for region in set(regions):
        atoms = [atom for atom in range(problem.size) if regions[atom] == region]
        if len({problem.labels[atom][labels[atom]].backend for atom in atoms}) > 1:
            wrong.append(f"region {region} is on two backends")
        if not nx.is_connected(near.subgraph(atoms)):
            wrong.append(f"region {region} is in pieces")
    for claim, atoms in enumerate(problem.atoms_of_claim):
        taken = [atom for atom in atoms if problem.labels[atom][labels[atom]].claim == claim]
        if taken and (len(taken) < len(atoms) or len({regions[atom] for atom in taken}) > 1):
            wrong.append(f"match {claim} is torn apart")
    return wrong


def least_after(case: Case, wanted: Mapping[int, int]) -> float:
    """Least energy with these labels, where regions without a changed atom stay whole and join changed ones only."""
    labels = tuple(wanted.get(atom, label) for atom, label in enumerate(case.placement.labels))
    regions = case.placement.regions
    touched = {regions[atom] for atom in wanted}
    loose = [[atom] for atom in range(case.problem.size) if regions[atom] in touched]
    whole = [[atom for atom, home in enumerate(regions) if home == region] for region in set(regions) - touched]
    found = float("inf")
    for homes in _groupings(case, labels, loose, whole):
        placement = Placement(labels, homes)
        if not problems_of(case.problem, placement):
            found = min(found, true_energy(case.problem, placement, case.rules.price))
    return found


def _groupings(
    case: Case, labels: Sequence[int], loose: list[list[int]], whole: list[list[int]]
) -> Iterator[tuple[int, ...]]:
    units = [*loose, *whole]
    for blocks in partitions(range(len(units))):
        if any(len(block) > 1 and min(block) >= len(loose) for block in blocks):
            continue
        homes = [0] * case.problem.size
        for number, block in enumerate(blocks):
            for unit in block:
                for atom in units[unit]:
                    homes[atom] = number
        owners = {(home, case.problem.labels[atom][labels[atom]].backend) for atom, home in enumerate(homes)}
        if len(owners) == len(blocks):
            yield tuple(homes)
