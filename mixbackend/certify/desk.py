"""Desk: answers what is asked about a backend's claims, in whatever process it stands.

Place: between the properties and ``crew``, which asks it in other processes or in this one. Input and output: plain
data, so that both are lines of JSON. What is asked: ``list`` the cases of a unit, ``examine`` a case, ``load`` an
artifact that another process stored, ``save``: what a refused case would save.
Invariants: cases of a unit are made once and kept for as long as few others were asked about.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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

_KEPT_UNITS = 3


class Desk:
    """See the module.

    Args:
        backend: whose claims are asked about.
        given: the vendor's samples, where they cannot be loaded by their place.
    """

    def __init__(self, backend: AskedBackend, given: Sequence[Sample] = ()) -> None:
        self._backend, self._given = backend, given
        self._cases: dict[Unit, list[list[Case]]] = {}
        self._skipped: dict[Unit, list[list[str]]] = {}

    def answer(self, request: Mapping[str, Any], at: At) -> Answer:
        """One answer; what a backend raises is in it."""
        unit = Unit(**request["unit"])
        if request["do"] == "list":
            return self._list(unit)
        sample, place = request["place"]
        case = self._cases_of(unit)[sample][place]
        if request["do"] == "examine":
            return self._examine(case, request.get("artifact", ""), at)
        if request["do"] == "load":
            return self._load(case, request["artifact"], at)
        at("save")
        return {"status": "pass", "saved_s": saved_seconds(case, self._backend)}

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
            for sample, cases in enumerate(self._cases_of(unit))
            for place, case in enumerate(cases)
        ]
        return {"status": "pass", "cases": listed, "skipped": self._skipped[unit]}

    def _examine(self, case: Case, artifact: str, at: At) -> Answer:
        found = examine(case, self._backend, at)
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

    def _cases_of(self, unit: Unit) -> list[list[Case]]:
        """Of each sample of a unit; none of those that torch does not trace or run."""
        if unit not in self._cases:
            while len(self._cases) >= _KEPT_UNITS:
                self._cases.pop(next(iter(self._cases)))
            self._skipped[unit] = []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._cases[unit] = self._made(unit)
        return self._cases[unit]

    def _made(self, unit: Unit) -> list[list[Case]]:
        try:
            samples = samples_of(unit, self._given)
        except Exception as error:  # an entry of torch's database that cannot make samples here
            self._skipped[unit].append([unit.name, one_line(error)])
            return []
        return [self._cut(unit, sample) for sample in samples]

    def _cut(self, unit: Unit, sample: Sample) -> list[Case]:
        try:
            return cases_of(sample, self._backend)
        except Exception as error:  # torch does not trace it
            self._skipped[unit].append([sample.name, one_line(error)])
            return []
