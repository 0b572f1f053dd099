"""Rows: a verdict on every claim.

Place: made of answers of ``desk``, read by the reports. Input: what was found of the cases of a claim. Output: ``Row``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mixbackend.certify.cases import Claim
from mixbackend.host.processes import Answer

Verdict = Literal["proved", "over-claim", "crashed", "under-claim", "not run"]
FAILING: tuple[Verdict, ...] = ("over-claim", "crashed")

_FATAL = {"crash": "crash", "timeout": "hang", "out_of_memory": "out of memory"}


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one claim.

    Attributes:
        claim: see ``Claim``.
        verdict: ``proved``; ``over-claim``, where something that it promises does not hold; ``crashed``, where a
            process
            died or hung; ``under-claim``, where it refuses what it can do; ``not run``.
        problems: kinds of what does not hold, each with what was seen.
        held: properties that hold, in every case that they were asked of.
        not_asked: by property, why it was asked of no case.
        cases: how many regions were examined.
        error: largest distance from float64 in units of the results' type.
        saved_s: of an under-claim, what claiming would save per call of the sample.
        detail: why it was not run, or what the refusal says.
        expected: why its failure is expected, by the file of expected failures.
    """

    claim: Claim
    verdict: Verdict
    problems: tuple[tuple[str, str], ...] = ()
    held: tuple[str, ...] = ()
    not_asked: Mapping[str, str] = field(default_factory=dict)
    cases: int = 0
    error: float | None = None
    saved_s: float | None = None
    detail: str = ""
    expected: str = ""

    @property
    def fails(self) -> bool:
        """Whether the claim is wrong."""
        return self.verdict in FAILING

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of its problems, each once."""
        return tuple(dict.fromkeys(kind for kind, _ in self.problems))


def row_of(claim: Claim, answers: Sequence[tuple[str, Answer]]) -> Row:
    """The verdict on a claim by the answers about its cases, each with what tells the case from others."""
    problems: list[tuple[str, str]] = []
    for shown, answer in answers:
        if answer["status"] in _FATAL:
            text = f"while it was asked about {answer['at'] or 'the sample'}: {answer.get('detail', '')[-400:]}"
            problems.append((_FATAL[answer["status"]], f"{text} ({shown})"))
        problems += [(kind, f"{text} ({shown})") for kind, text in answer.get("problems", ())]
    failing = {kind for kind, _ in problems}
    held = dict.fromkeys(name for _, answer in answers for name in answer.get("held", ()))
    reasons: dict[str, str] = {}
    for _, answer in answers:
        for name, reason in answer.get("not_asked", {}).items():
            if name not in held and name not in failing:
                reasons.setdefault(name, reason)
    errors = [answer["error"] for _, answer in answers if answer.get("error") is not None]
    return Row(
        claim,
        _verdict(answers, bool(problems), "values" in held),
        tuple(problems),
        tuple(name for name in held if name not in failing),
        reasons,
        len(answers),
        max(errors, default=None),
        detail="" if "values" in held or problems else reasons.get("values", "no case of it could be examined"),
    )


def _verdict(answers: Sequence[tuple[str, Answer]], wrong: bool, right: bool) -> Verdict:
    if any(answer["status"] in _FATAL for _, answer in answers):
        return "crashed"
    if wrong:
        return "over-claim"
    return "proved" if right else "not run"


def counts_of(rows: Sequence[Row]) -> dict[str, int]:
    """How many rows have each verdict; expected failures are counted apart."""
    counts: dict[str, int] = dict.fromkeys((*_VERDICTS, "expected"), 0)
    for row in rows:
        counts["expected" if row.expected and row.fails else row.verdict] += 1
    return counts


_VERDICTS: tuple[Verdict, ...] = ("proved", "over-claim", "crashed", "under-claim", "not run")


def row_data(row: Row) -> dict[str, Any]:
    """A row as plain data."""
    return {
        "op": row.claim.op,
        "dtypes": row.claim.dtypes,
        "sizes": row.claim.sizes,
        "phase": row.claim.phase,
        "verdict": row.verdict,
        "problems": [{"kind": kind, "text": text} for kind, text in row.problems],
        "held": list(row.held),
        "not_asked": dict(row.not_asked),
        "cases": row.cases,
        "error": row.error,
        "saved_s": row.saved_s,
        "detail": row.detail,
        "expected": row.expected,
    }


def row_from(data: Mapping[str, Any]) -> Row:
    """A row from plain data, also of an earlier version."""
    return Row(
        Claim(data["op"], data["dtypes"], data["sizes"], data["phase"]),
        data["verdict"],
        tuple((item["kind"], item["text"]) for item in data.get("problems", ())),
        tuple(data.get("held", ())),
        dict(data.get("not_asked", {})),
        data.get("cases", 0),
        data.get("error"),
        data.get("saved_s"),
        data.get("detail", ""),
        data.get("expected", ""),
    )
