"""One backend wherever it can, the last resort elsewhere: the plans that a mixture must beat.

Place: candidates of ``place`` and the ``single_backend_s`` of a plan. Input: a problem. Output: labels.
"""

from __future__ import annotations

from collections.abc import Sequence

from mixbackend.contracts import Backend
from mixbackend.partitioner.problem import Problem


def last_resort_of(backends: Sequence[Backend]) -> int:
    """Number of the backend that fills in: the last one that takes effects, else the last of all."""
    able = [slot for slot, backend in enumerate(backends) if backend.traits().takes_effects]
    return able[-1] if able else len(backends) - 1


def single_backend_labels(problem: Problem, slot: int, last_resort: int) -> tuple[int, ...]:
    """Labels with one backend wherever it can; its matches are taken where they save or where nothing else works."""
    labels: list[int | None] = [problem.plain(atom, slot) for atom in range(problem.size)]
    taken: set[int] = set()
    for number, claim in enumerate(problem.claims):
        atoms = problem.atoms_of_claim[number]
        if claim.backend != slot or taken.intersection(atoms):
            continue
        chosen = {atom: _position(problem, atom, number) for atom in atoms}
        plain = [problem.costs[atom][label] for atom in atoms if (label := labels[atom]) is not None]
        matched = sum(problem.costs[atom][label] for atom, label in chosen.items())
        if len(plain) < len(atoms) or matched <= sum(plain):
            labels = [chosen.get(atom, label) for atom, label in enumerate(labels)]
            taken.update(atoms)
    return tuple(_other(problem, atom, last_resort) if label is None else label for atom, label in enumerate(labels))


def _position(problem: Problem, atom: int, claim: int) -> int:
    return next(number for number, label in enumerate(problem.labels[atom]) if label.claim == claim)


def _other(problem: Problem, atom: int, last_resort: int) -> int:
    """The last resort's label, else the cheapest that needs no match."""
    label = problem.plain(atom, last_resort)
    if label is not None:
        return label
    costs = problem.costs[atom]
    return min(range(len(costs)), key=lambda number: (problem.labels[atom][number].claim >= 0, costs[number]))
