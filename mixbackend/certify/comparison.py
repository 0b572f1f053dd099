"""What changed: failures that are expected by a file, and what is worse than in an earlier run.

Place: after all rows are known. Input: rows, the file of expected failures, rows of an earlier certificate. Output:
rows with their expectations, alarms, regressions.
A file of expected failures has one line each: a claim and the kind of its problem, with ``*`` for any text, and the
reason behind a ``#``::

    aten.cumsum.default float16 * : values   # sums in float16, repaired in release 3
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from mixbackend.certify.rows import Row
from mixbackend.contracts import MixbackendError

GREW, GREW_BY = 2.0, 1.0
"""An error that is so many times what it was, and so many units more, is a regression."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One line of a file of expected failures.

    Attributes:
        claim, kind: patterns.
        reason: why it fails.
    """

    claim: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.claim} : {self.kind}"


def read_expected(path: Path) -> tuple[Expected, ...]:
    """The lines of a file.

    Raises:
        MixbackendError: a line is none, or has no reason; names all of them.
    """
    found, wrong = [], []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MixbackendError(
            what=f"{path} cannot be read: {error}", hint="give a file of expected failures"
        ) from error
    for number, line in enumerate(lines, 1):
        text, _, reason = line.partition("#")
        claim, colon, kind = (part.strip() for part in text.rpartition(":"))
        if not text.strip():
            continue
        if not (colon and claim and kind and reason.strip()):
            wrong.append(f"line {number}: {line.strip()!r}")
            continue
        found.append(Expected(" ".join(claim.split()), kind, reason.strip()))
    if wrong:
        raise MixbackendError(what=f"{path}: " + "; ".join(wrong), hint="write CLAIM : KIND  # REASON")
    return tuple(found)


def with_expected(
    rows: Sequence[Row], expected: Sequence[Expected], whole: bool
) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """Rows with only expected problems say so; and an alarm for each line that nothing has any more.

    Args:
        whole: whether everything was asked: then a line that fits no claim is out of date.
    """
    used: set[Expected] = set()
    found = []
    for row in rows:
        if not row.fails:
            found.append(row)
            continue
        reasons = [_explaining(row, kind, expected) for kind in row.kinds]
        used.update(item for item in reasons if item is not None)
        explained = all(item is not None for item in reasons)
        texts = dict.fromkeys(item.reason for item in reasons if item is not None)
        found.append(replace(row, expected="; ".join(texts)) if explained and texts else row)
    alarms = (_alarm(item, rows, whole) for item in expected if item not in used)
    return tuple(found), tuple(filter(None, alarms))


def _explaining(row: Row, kind: str, expected: Iterable[Expected]) -> Expected | None:
    return next((item for item in expected if _fits(item, row) and fnmatchcase(kind, item.kind)), None)


def _fits(item: Expected, row: Row) -> bool:
    return fnmatchcase(str(row.claim), item.claim)


def _alarm(item: Expected, rows: Sequence[Row], whole: bool) -> str:
    """Nothing is said where the claims of a line were not examined in this run."""
    fitting = [row for row in rows if _fits(item, row)]
    examined = [row for row in fitting if row.cases]
    if fitting and not examined:
        return ""
    if not fitting:
        return "" if not whole else f"expected to fail, but nothing of this name is claimed: {item}"
    return f"expected to fail, but it holds: {item}"


def regressions(rows: Sequence[Row], before: Sequence[Row]) -> tuple[str, ...]:
    """What was proved before and fails now, and errors that have grown."""
    known = {row.claim: row for row in before}
    found = []
    for row in rows:
        last = known.get(row.claim)
        if last is None or last.verdict != "proved":
            continue
        if row.fails and not row.expected:
            found.append(f"{row.claim}: was proved, now {row.verdict} ({', '.join(row.kinds)})")
        elif _grew(row.error, last.error):
            found.append(f"{row.claim}: its error was {last.error:.3g} units, now {row.error:.3g}")
    return tuple(found)


def _grew(now: float | None, before: float | None) -> bool:
    return now is not None and before is not None and now > GREW * before and now > before + GREW_BY
