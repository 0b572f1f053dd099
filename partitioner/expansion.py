"""Expansion moves for graphs too wide for exact elimination.

Place: fallback of the search. Input: a bound model and starting labels. Output: labels that no move improves.
Method: alpha-expansion (Y. Boykov, O. Veksler, R. Zabih, "Fast approximate energy minimization via graph cuts", 2001):
every atom keeps its label or switches to the backend alpha, all at once. Our pair costs are not always regular, as cuts
would need; the two-state problem is solved by elimination under a cap instead, and a move counts only if the energy
falls, so the result is never worse than the start.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mixbackend.partitioner.bound import BoundModel
from mixbackend.partitioner.elimination import Factor, eliminate, energy_of, min_degree_order

MOVE_ENTRIES = 1 << 14
ROUNDS = 3


def expand(model: BoundModel, start: Sequence[int]) -> tuple[int, ...]:
    """Improve labels by expansion moves; helpers of the model are left out of account."""
    factors = [factor for factor in model.factors if all(variable < model.atoms for variable in factor.scope)]
    labels = tuple(start)
    best = energy_of(factors, labels)
    most = max(model.sizes[: model.atoms], default=0)
    for _ in range(ROUNDS):
        before = best
        for alpha in range(most):
            moved = _move(model, factors, labels, alpha)
            energy = energy_of(factors, moved)
            if energy < best and not np.isclose(energy, best, rtol=1e-12, atol=0.0):
                labels, best = moved, energy
        if best == before:
            break
    return labels


def _move(model: BoundModel, factors: Sequence[Factor], labels: Sequence[int], alpha: int) -> tuple[int, ...]:
    choices = [
        [label] if alpha >= model.sizes[atom] or label == alpha else [label, alpha] for atom, label in enumerate(labels)
    ]
    reduced = [
        Factor(factor.scope, factor.table[np.ix_(*[choices[atom] for atom in factor.scope])]) for factor in factors
    ]
    sizes = [len(choice) for choice in choices]
    order = min_degree_order(sizes, (factor.scope for factor in reduced))
    solution = eliminate(sizes, reduced, order, MOVE_ENTRIES)
    return tuple(choices[atom][state] for atom, state in enumerate(solution.states))
