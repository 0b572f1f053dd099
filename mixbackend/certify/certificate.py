"""The certificate: all rows with what they were found by, as data.

Place: what ``mixbackend.certify`` returns; written by the command, read again by ``comparison``.
Versions: ``SCHEMA`` counts changes of the data's form. Fields are only ever added; what is there keeps name and
meaning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixbackend.certify import pages
from mixbackend.certify.rows import Row, counts_of, row_data, row_from
from mixbackend.contracts import MixbackendError

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was found of a backend.

    Attributes:
        facts: of the run: backend, versions, machine, rule, seconds.
        rows: a verdict for each claim, in a fixed order.
        refused: how many questions the backend refused, by the code of the refusal.
        skipped: samples that torch itself does not trace or run: (name, why).
        alarms: expected failures that pass, or that no claim has.
        regressions: what is worse than in the run that this one was held against.
    """

    facts: Mapping[str, Any]
    rows: tuple[Row, ...]
    refused: Mapping[str, int] = field(default_factory=dict)
    skipped: tuple[tuple[str, str], ...] = ()
    alarms: tuple[str, ...] = ()
    regressions: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Row, ...]:
        """Claims that are wrong, and are not expected to be."""
        return tuple(row for row in self.rows if row.fails and not row.expected)

    @property
    def passed(self) -> bool:
        """Whether something was proved, nothing is wrong, nothing is worse than before, and no alarm rang."""
        return bool(self.counts["proved"]) and not (self.failures or self.alarms or self.regressions)

    @property
    def counts(self) -> dict[str, int]:
        """Rows by verdict; expected failures apart."""
        return counts_of(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "schema": SCHEMA,
            **self.facts,
            "passed": self.passed,
            "counts": self.counts,
            "rows": [row_data(row) for row in self.rows],
            "refused": dict(self.refused),
            "skipped": [list(item) for item in self.skipped],
            "alarms": list(self.alarms),
            "regressions": list(self.regressions),
        }

    def to_markdown(self) -> str:
        """The page for summaries of continuous integration."""
        return pages.markdown(self.to_dict())

    def to_badge(self) -> dict[str, Any]:
        """An endpoint of shields.io."""
        return pages.badge(self.to_dict())


def read_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a certificate that was written before.

    Raises:
        MixbackendError: it is none, or of a later form.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        schema = data["schema"]
        if schema > SCHEMA:
            raise MixbackendError(
                what=f"{path} has schema {schema}, this mixbackend reads up to {SCHEMA}",
                hint="certify with the mixbackend that wrote it, or a later one",
            )
        return tuple(row_from(item) for item in data["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MixbackendError(
            what=f"{path} is no certificate: {type(error).__name__}: {error}",
            hint="give a file that `mixbackend certify NAME --json` wrote",
        ) from error
