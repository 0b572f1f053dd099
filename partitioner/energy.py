"""The true energy of a legal plan, in seconds. The one definition; search, tests and report use it.

A plan gives every atom a label (a backend, perhaps with a matched pattern) and a region. Then

    E =  sum over atoms     cost of its op with this label, preference factor applied, graph inputs read
       + sum over values    write(producer)           once, if some reader does not fuse with the producer,
                                                      or the graph returns the value
       + sum over readers   read(reader)              for each reading atom that does not fuse with the producer
       + sum over values    crossing(producer, b)     once per reading backend b other than the producer's
       + sum over regions   entry(backend)            once; less switch(backend) if all regions are on one pool of
                                                      threads: none has to be woken up

A reader fuses with the producer if both are in one region and the backend declares the pair of op classes as fused, or
both run inside the same matched pattern. Views and ``getitem`` cost nothing and move nothing; they stay with their
producer. Views of graph inputs and small constants are copied into every region that reads them: the owner pays for
the constant, the copies are free.

A backend that knows the cost of a whole region better (``Backend.region_cost``) replaces the sum of that region: its
atoms, reads, writes, crossings and entry, as attributed here: reads and crossings to the reader's region (a crossing to
the first such reader in graph order), writes to the producer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mixbackend.partitioner.problem import Problem, Value

RegionPrice = Callable[[int, Sequence[int], float], "float | None"]
"""(backend, atoms of the region in graph order, modelled seconds) -> the backend's own price, or ``None``."""


class Homes(Protocol):
    """Region number by atom."""

    def __getitem__(self, atom: int, /) -> int: ...


@dataclass(frozen=True)
class Placement:
    """A label and a region for every atom.

    Attributes:
        labels: per atom, the position of its label.
        regions: per atom, the number of its region; numbers are arbitrary.
    """

    labels: tuple[int, ...]
    regions: tuple[int, ...]


def fuses(problem: Problem, value: Value, fused: int, reader: int, labels: Sequence[int]) -> bool:
    """Whether producer and reader keep a value out of memory, given that they are in one region."""
    first = problem.labels[value.producer][labels[value.producer]]
    second = problem.labels[reader][labels[reader]]
    if first.backend != second.backend:
        return False
    return bool(fused >> first.backend & 1) or (first.claim >= 0 and first.claim == second.claim)


def value_parts(
    problem: Problem, value: Value, labels: Sequence[int], regions: Homes
) -> tuple[float, list[tuple[int, float]]]:
    """(seconds of the producer, [(reader, seconds)]) that one value costs."""
    owner = problem.labels[value.producer][labels[value.producer]].backend
    home = regions[value.producer]
    crossed: set[int] = set()
    written = value.output
    readers: list[tuple[int, float]] = []
    for use in value.uses:
        if regions[use.atom] == home and fuses(problem, value, use.fused, use.atom, labels):
            continue
        written = True
        backend = problem.labels[use.atom][labels[use.atom]].backend
        seconds = use.reads[backend]
        if backend != owner and backend not in crossed:
            crossed.add(backend)
            seconds += value.crossings[owner][backend]
        readers.append((use.atom, seconds))
    return (value.writes[owner] if written else 0.0), readers


def modelled_seconds(problem: Problem, atoms: Sequence[int], labels: Sequence[int], regions: Homes) -> float:
    """Seconds of one region under the model, whatever its backend says, switch included: ``atoms`` are all of it."""
    inside = set(atoms)
    seconds = problem.entry[problem.labels[atoms[0]][labels[atoms[0]]].backend]
    seconds += sum(problem.costs[atom][labels[atom]] for atom in atoms)
    for number in dict.fromkeys(number for atom in atoms for number in problem.values_of[atom]):
        value = problem.values[number]
        written, readers = value_parts(problem, value, labels, regions)
        seconds += written if value.producer in inside else 0.0
        seconds += sum(cost for atom, cost in readers if atom in inside)
    return seconds


def saves_switches(problem: Problem, backends: Iterable[int]) -> bool:
    """Whether regions of these backends, which are all of a plan, share one pool of threads that is not torch's."""
    if not problem.whole_pools:
        return False
    used = set(backends)
    return len({problem.pools[backend] for backend in used}) == 1 and any(problem.switch[backend] for backend in used)


def modelled_energies(problem: Problem, placement: Placement) -> dict[int, float]:
    """``modelled_seconds`` of each region."""
    labels, regions = placement.labels, placement.regions
    seconds: dict[int, float] = {}
    for atom, region in enumerate(regions):
        if region not in seconds:
            seconds[region] = problem.entry[problem.labels[atom][labels[atom]].backend]
        seconds[region] += problem.costs[atom][labels[atom]]
    for value in problem.values:
        written, readers = value_parts(problem, value, labels, regions)
        seconds[regions[value.producer]] += written
        for atom, cost in readers:
            seconds[regions[atom]] += cost
    return seconds


def region_energies(problem: Problem, placement: Placement, price: RegionPrice | None = None) -> dict[int, float]:
    """Seconds of each region; their sum is the true energy of the plan."""
    members: dict[int, list[int]] = {}
    for atom, region in enumerate(placement.regions):
        members.setdefault(region, []).append(atom)
    owners = {region: problem.labels[atoms[0]][placement.labels[atoms[0]]].backend for region, atoms in members.items()}
    saved = problem.switch if saves_switches(problem, owners.values()) else (0.0,) * len(problem.switch)
    energies: dict[int, float] = {}
    for region, seconds in modelled_energies(problem, placement).items():
        own = None if price is None else price(owners[region], members[region], seconds)
        energies[region] = seconds - saved[owners[region]] if own is None else own
    return energies


def true_energy(problem: Problem, placement: Placement, price: RegionPrice | None = None) -> float:
    """Seconds of a legal plan."""
    return sum(region_energies(problem, placement, price).values())
