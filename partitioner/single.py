"""One backend wherever it can, the last resort elsewhere: the plans that a mixture must beat.

Place: candidates of ``place`` and the ``single_backend_s`` of a plan; ``labels_on`` also gives the alternatives of a
region. Input: a problem. Output: labels.
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
    chosen = labels_on(problem, range(problem.size), slot)
    return tuple(chosen[atom] if atom in chosen else _other(problem, atom, last_resort) for atom in range(problem.size))


def labels_on(problem: Problem, atoms: Sequence[int], slot: int) -> dict[int, int]:
    """Labels of a backend for those of some atoms that it can run; only matches that lie inside them are taken."""
    inside = set(atoms)
    labels = {atom: label for atom in atoms if (label := problem.plain(atom, slot)) is not None}
    taken: set[int] = set()
    claims = {label.claim for atom in atoms for label in problem.labels[atom] if label.backend == slot}
    for number in sorted(claims - {-1}):
        claimed = problem.atoms_of_claim[number]
        if taken.intersection(claimed) or not inside.issuperset(claimed):
            continue
        chosen = {atom: _position(problem, atom, number) for atom in claimed}
        plain = [problem.costs[atom][labels[atom]] for atom in claimed if atom in labels]
        matched = sum(problem.costs[atom][label] for atom, label in chosen.items())
        if len(plain) < len(claimed) or matched <= sum(plain):
            labels.update(chosen)
            taken.update(claimed)
    return labels


def _position(problem: Problem, atom: int, claim: int) -> int:
    return next(number for number, label in enumerate(problem.labels[atom]) if label.claim == claim)


def _other(problem: Problem, atom: int, last_resort: int) -> int:
    """The last resort's label, else the cheapest that needs no match."""
    label = problem.plain(atom, last_resort)
    if label is not None:
        return label
    costs = problem.costs[atom]
    return min(range(len(costs)), key=lambda number: (problem.labels[atom][number].claim >= 0, costs[number]))
