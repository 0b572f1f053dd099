"""Desk: answers what is asked about a backend's claims, in whatever process it stands.

Place: between the properties and ``crew``, which asks it in other processes or in this one. Input and output: plain
data, so that both are lines of JSON. What is asked: ``list`` the cases of a unit, ``examine`` a case, ``load`` an
artifact that another process stored, ``save``: what a refused case would save.
Invariants: what was traced is kept for as long as few other units were asked about.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mixbackend.certify.cases import Case, cases_of
from mixbackend.certify.examine import At, examine, saved_seconds
from mixbackend.certify.properties.stored import KIND, loaded
from mixbackend.certify.samples import Sample
from mixbackend.certify.tested import NotAsked, one_line
from mixbackend.certify.units import Unit, samples_of
from mixbackend.contracts.asked import AskedBackend
from mixbackend.host.processes import Answer

_KEPT_UNITS = 4


@dataclass
class _Prepared:
    """The samples of a unit, cases of those that were asked about, and what could not be traced."""

    samples: list[Sample] = field(default_factory=list)
    cases: dict[int, list[Case]] = field(default_factory=dict)
    skipped: list[list[str]] = field(default_factory=list)


class Desk:
    """See the module.

    Args:
        backend: its claims are asked about.
        given: the vendor's samples, where they cannot be loaded by their place.
    """

    def __init__(self, backend: AskedBackend, given: Sequence[Sample] = ()) -> None:
        self._backend, self._given = backend, given
        self._units: dict[Unit, _Prepared] = {}

    def answer(self, request: Mapping[str, Any], at: At) -> Answer:
        """One answer; what a backend raises is in it."""
        unit = Unit(**request["unit"])
        if request["do"] == "list":
            return self._list(unit)
        sample, place = request["place"]
        case = self._cases_of(unit, sample)[place]
        try:
            if request["do"] == "examine":
                return self._examine(case, request, at)
            if request["do"] == "load":
                return self._load(case, request["artifact"], at)
            at("save")
            return {"status": "pass", "saved_s": saved_seconds(case, self._backend)}
        except Exception as error:  # what a backend raises is a finding already: this is the check's own
            return {"status": "pass", "not_asked": {"values": f"the check failed: {one_line(error)}"}}

    def _list(self, unit: Unit) -> Answer:
        listed = [
            {
                "claim": asdict(case.claim),
                "digest": case.digest,
                "features": sorted(case.features),
                "refusal": None if case.refusal is None else [case.refusal.code, case.refusal.detail],
                "sample": case.sample,
                "place": [sample, place],
            }
            for sample in range(len(self._prepared(unit).samples))
            for place, case in enumerate(self._cases_of(unit, sample))
        ]
        return {"status": "pass", "cases": listed, "skipped": self._prepared(unit).skipped}

    def _examine(self, case: Case, request: Mapping[str, Any], at: At) -> Answer:
        artifact = request["artifact"]
        found = examine(case, self._backend, at, request["quick"])
        if artifact and found.artifact is not None:
            Path(artifact).write_bytes(found.artifact)
        return {
            "status": "pass",
            "problems": [[problem.kind, problem.text] for problem in found.problems],
            "held": list(found.held),
            "not_asked": dict(found.not_asked),
            "error": found.error,
            "stored": bool(artifact and found.artifact is not None),
        }

    def _load(self, case: Case, artifact: str, at: At) -> Answer:
        at(KIND)
        answer: Answer = {"status": "pass", "problems": [], "not_asked": {}, "held": []}
        try:
            problem = loaded(case, self._backend, Path(artifact).read_bytes(), "loaded in another process")
        except NotAsked as reason:
            return {**answer, "not_asked": {KIND: str(reason)}}
        return {
            **answer,
            "problems": [[problem.kind, problem.text]] if problem else [],
            "held": [] if problem else [KIND],
        }

    def _cases_of(self, unit: Unit, sample: int) -> list[Case]:
        """Of one sample of a unit; none where torch does not trace it."""
        prepared = self._prepared(unit)
        if sample not in prepared.cases:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    prepared.cases[sample] = cases_of(prepared.samples[sample], self._backend)
                except Exception as error:  # torch does not trace it
                    prepared.skipped.append([prepared.samples[sample].name, one_line(error)])
                    prepared.cases[sample] = []
        return prepared.cases[sample]

    def _prepared(self, unit: Unit) -> _Prepared:
        if unit not in self._units:
            while len(self._units) >= _KEPT_UNITS:
                self._units.pop(next(iter(self._units)))
            self._units[unit] = _Prepared()
            try:
                self._units[unit].samples = samples_of(unit, self._given)
            except Exception as error:  # an entry of torch's database that cannot make samples here
                self._units[unit].skipped.append([unit.name, one_line(error)])
        return self._units[unit]
