"""Which cases are examined: a few of each claim, as unlike one another as there are.

Place: between listing and examining. Input: the listed cases of all units. Output: ``Listed`` cases by claim, in the
order in which they are examined.
Invariants: the choice depends on what was listed alone, neither on processes nor on time; equal regions are examined
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.certify.cases import BROADCAST, GAPS, ZERO_SIZE, Claim
from mixbackend.certify.units import FIRST, Extent, Unit

_TRIED_AGAIN = frozenset({"unknown-op", "dtype", "rank", "layout", "argument", "dynamic-shape", "phase"})
"""Codes of refusals that say that a backend cannot; of others nothing is to be learned by trying."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A case that some process listed.

    Attributes:
        unit: that it is of.
        place: of its sample in the unit, and its own in the sample.
        claim, digest, features, sample: see ``Case``.
        refusal: code and detail, empty where the backend claims it.
    """

    unit: Unit
    place: tuple[int, int]
    claim: Claim
    digest: str
    features: frozenset[str]
    sample: str
    refusal: tuple[str, str] | None

    @property
    def shown(self) -> str:
        """What tells it from other cases of its claim."""
        return f"sample {self.sample}" + "".join(f", {item}" for item in sorted(self.features) if len(item) < 60)

    def request(self, what: str, artifact: str = "", quick: bool = False) -> dict[str, Any]:
        """What a process is asked about it."""
        place = list(self.place)
        return {"do": what, "unit": self.unit.to_dict(), "place": place, "artifact": artifact, "quick": quick}


def listed(unit: Unit, cases: Iterable[dict[str, Any]]) -> list[Listed]:
    """Cases of a unit from the answer of a process."""
    return [
        Listed(
            unit,
            (case["place"][0], case["place"][1]),
            Claim(**case["claim"]),
            case["digest"],
            frozenset(case["features"]),
            case["sample"],
            None if case["refusal"] is None else (case["refusal"][0], case["refusal"][1]),
        )
        for case in cases
    ]


def chosen(found: Iterable[Listed], extent: Extent) -> dict[Claim, list[Listed]]:
    """Cases to examine, by claim; the first claims are those that say most."""
    claimed: dict[Claim, dict[str, Listed]] = {}
    for item in found:
        if item.refusal is None and extent.wants(item.claim.op):
            claimed.setdefault(item.claim, {}).setdefault(item.digest, item)
    forward = {(claim.op, claim.dtypes) for claim in claimed if claim.phase != "backward"}
    kept = {
        claim: _unlike(list(cases.values()), _most(claim, extent))
        for claim, cases in claimed.items()
        # What a backward needs of the forward was asked about there.
        if claim.phase != "backward" or (claim.op, claim.dtypes) not in forward
    }
    return dict(sorted(kept.items(), key=lambda item: _rank(item[0])))


def in_turns(cases: Mapping[Claim, Sequence[Listed]]) -> list[tuple[Claim, Listed]]:
    """First a case of each claim, so that a run that ends early has seen something of each; of one unit together."""
    units = {item.unit: None for items in cases.values() for item in items}
    order = {unit: place for place, unit in enumerate(units)}
    queue = [(turn, claim, item) for claim, items in cases.items() for turn, item in enumerate(items)]
    queue.sort(key=lambda entry: (entry[0], _rank(entry[1])[:4], order[entry[2].unit]))
    return [(claim, item) for _, claim, item in queue]


def refused(found: Iterable[Listed], extent: Extent) -> list[Listed]:
    """A refused case for each operator, kind of sizes and kind of refusal."""
    cases: dict[tuple[str, str, str], Listed] = {}
    for item in found:
        if item.refusal is None or item.refusal[0] not in _TRIED_AGAIN or not extent.wants(item.claim.op):
            continue
        if not item.claim.op.startswith(("region ", "pattern ")):
            cases.setdefault((item.claim.op, item.claim.sizes, item.refusal[0]), item)
    return sorted(cases.values(), key=lambda item: _rank(item.claim))


def _unlike(cases: Sequence[Listed], most: int) -> list[Listed]:
    """The first case that is nothing special, then those that add most features."""
    left = sorted(cases, key=lambda item: (_special(item), cases.index(item)))
    taken: list[Listed] = []
    seen: set[str] = set()
    while left and len(taken) < most:
        best = left[0] if not taken else max(left, key=lambda item: len(item.features - seen))
        taken.append(best)
        seen |= best.features
        left.remove(best)
    return taken


def _special(item: Listed) -> bool:
    return bool(item.features & {ZERO_SIZE, BROADCAST, GAPS, "rank 0"})


def _most(claim: Claim, extent: Extent) -> int:
    if claim.op.startswith(("region ", "pattern ")):
        return 1 if extent.quick else 4
    first, static = claim.dtypes == FIRST, claim.sizes == "static"
    if extent.quick:
        return 1
    return (3 if static else 2) if first else 1


def _rank(claim: Claim) -> tuple[Any, ...]:
    whole = not claim.op.startswith(("region ", "pattern "))
    return (
        whole,
        FIRST not in claim.dtypes,
        claim.dtypes != FIRST,
        claim.phase == "backward",
        claim.op,
        claim.sizes,
        claim.dtypes,
    )
