"""Finds the values for which the lower bound charged less than the true energy.

Place: between two searches: these values get a state variable of their own in the next one, which makes them exact.
Input: a problem and the labels of the last search. Output: value numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mixbackend.partitioner.energy import fuses
from mixbackend.partitioner.problem import Problem


def slack_values(problem: Problem, labels: Sequence[int]) -> Iterator[int]:
    """Numbers of the values with a write or crossing that was split among readers of which only some pay."""
    for number, value in enumerate(problem.values):
        if len(value.uses) < 2:
            continue
        owner = problem.labels[value.producer][labels[value.producer]].backend
        unfused = sum(not fuses(problem, value, use.fused, use.atom, labels) for use in value.uses)
        split_write = value.writes[owner] > 0.0 and 0 < unfused < len(value.uses)
        readers = Counter(problem.labels[use.atom][labels[use.atom]].backend for use in value.uses)
        split_crossing = any(
            slot != owner and value.crossings[owner][slot] > 0.0 and count < _able(problem, number, slot)
            for slot, count in readers.items()
        )
        if split_write or split_crossing:
            yield number


def _able(problem: Problem, number: int, slot: int) -> int:
    """How many readers of a value could be on a backend."""
    readers = (problem.labels[use.atom] for use in problem.values[number].uses)
    return sum(any(label.backend == slot for label in labels) for labels in readers)
