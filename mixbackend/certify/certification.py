"""Certify: every claim of a backend, from samples to the certificate.

Place: behind ``mixbackend.certify`` and the command. Input: a backend, how much is asked. Output: a ``Certificate``.
Steps: list the cases of all units (what torch traces, what the backend claims); examine a few of each claim; load in
fresh processes what was stored; try what is refused.
Invariants: samples are seeded and the choice of cases depends on nothing else, so that two runs ask the same; whatever
a backend does in a process of its own is a row, never an exception.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixbackend.certify import comparison, torch_samples
from mixbackend.certify.cases import Claim
from mixbackend.certify.certificate import Certificate, read_rows
from mixbackend.certify.chosen import Listed, chosen, in_turns, listed, refused
from mixbackend.certify.crew import Crew, Told
from mixbackend.certify.desk import Desk
from mixbackend.certify.facts import facts_of
from mixbackend.certify.rows import Row, row_of
from mixbackend.certify.samples import Sample, checked_samples
from mixbackend.certify.source import asked, source_of
from mixbackend.certify.units import SOURCES, Extent, Unit, following, given_samples, units_of
from mixbackend.contracts import Backend, MixbackendError
from mixbackend.contracts.asked import AskedBackend
from mixbackend.host.processes import Answer

Progress = Callable[[str], None]

TIMEOUT_S = 60.0
QUICK_S = 100.0
"""A quick run begins no further case after so many seconds."""
_HINTS_S = 90.0
_QUICK_LOADS = 24


def certify(
    backend: str | Backend,
    *,
    ops: Sequence[str] = (),
    samples: str | Iterable[Sample] = (),
    sources: Sequence[str] = SOURCES,
    quick: bool = False,
    jobs: int | None = None,
    timeout_s: float = TIMEOUT_S,
    limit_s: float | None = None,
    against: str | Path | None = None,
    expected: str | Path | None = None,
    progress: Progress = lambda text: None,
) -> Certificate:
    """Hold every claim of a backend against eager, in processes that may crash.

    Args:
        backend: name of a registered one, ``module:class``, or an object. One that other processes cannot make (see
            ``certify.source``) is examined in this process, and ends it if it crashes.
        ops: only operators with one of these words in their names.
        samples: the vendor's own, as ``module:name`` or as objects; torch's and ours are asked as well.
        sources: where the samples come from that are asked: of ``given``, ``own`` and ``torch``.
        quick: some of everything, in less than two minutes.
        jobs: processes side by side, by default one for each core; 0 for none: this process examines.
        timeout_s: longest time for one property of one case; what takes longer hangs.
        limit_s: begin nothing after so many seconds; what is left is not run.
        against: an earlier certificate (JSON): what has become worse is a regression.
        expected: file of failures that are expected, see ``comparison``.
        progress: told what is going on.

    Raises:
        MixbackendError: there is no such backend or source, it cannot be used here, or a file is not what it should be.
    """
    unknown = sorted(set(sources) - set(SOURCES))
    if unknown:
        raise MixbackendError(what=f"no samples are called {', '.join(unknown)}", hint=f"use {', '.join(SOURCES)}")
    lines = comparison.read_expected(Path(expected)) if expected is not None else ()
    before = read_rows(Path(against)) if against is not None else ()
    given = samples if isinstance(samples, str) else checked_samples(samples)
    extent = Extent(quick, tuple(ops), given, tuple(source for source in SOURCES if source in sources))
    limit = QUICK_S if quick and limit_s is None else limit_s
    run = _Run(backend, extent, jobs, timeout_s, limit, progress)
    try:
        rows = run.rows()
    finally:
        run.close()
    whole = not (quick or ops or limit)
    rows, alarms = comparison.with_expected(rows, lines, whole)
    return Certificate(
        facts_of(run.backend, extent, run.isolated, time.monotonic() - run.start),
        rows,
        dict(sorted(run.refusals.items())),
        tuple(run.skipped),
        alarms,
        comparison.regressions(rows, before),
    )


@dataclass
class _Examined:
    """Answers about the cases of a claim, and a case of it with a stored artifact."""

    answers: list[tuple[str, Answer]] = field(default_factory=list)
    stored: tuple[Listed, str] | None = None


class _Run:
    """One certification."""

    def __init__(
        self,
        backend: str | Backend,
        extent: Extent,
        jobs: int | None,
        timeout_s: float,
        limit_s: float | None,
        progress: Progress,
    ) -> None:
        self.start = time.monotonic()
        self._end = float("inf") if limit_s is None else self.start + limit_s
        self._extent, self._progress = extent, progress
        source = source_of(backend)
        self.backend: AskedBackend = source.load() if source is not None else asked(backend)
        carried = not extent.given or isinstance(extent.given, str)
        desk = Desk(self.backend, () if carried else given_samples(extent.given))
        wanted = (os.cpu_count() or 1) if jobs is None else jobs
        self._crew = Crew(wanted, timeout_s, source if carried else None, desk, "torch" in extent.sources)
        self.isolated = self._crew.isolated
        self.refusals: Counter[str] = Counter()
        self.skipped: list[tuple[str, str]] = []

    def rows(self) -> tuple[Row, ...]:
        """A verdict on every claim."""
        found = self._listed()
        cases = chosen(found, self._extent)
        if not found and time.monotonic() < self._end:
            raise MixbackendError(
                what="no sample asks anything of this backend",
                hint="see --ops; give samples of your own with --samples",
            )
        with tempfile.TemporaryDirectory(prefix="mixbackend-certify-") as folder:
            examined = self._examined(cases, Path(folder))
            hints = self._under_claims(found, set(cases))
            self._load(examined)
        rows = [row_of(claim, item.answers) if item.answers else _late(claim) for claim, item in examined.items()]
        return (*self._of_itself(cases), *rows, *hints)

    def close(self) -> None:
        """End the processes."""
        self._crew.close()

    def _listed(self) -> list[Listed]:
        units, found = units_of(self._extent), list[Listed]()
        while units:
            told = self._cases_of(units)
            claimed = {item.unit for item in told if item.refusal is None}
            known = {item.unit for item in told if item.refusal is None or item.refusal[0] != "unknown-op"}
            units = following(self._extent, units, claimed, known)
            found += told
        self.skipped.sort()
        self.refusals.update(item.refusal[0] for item in found if item.refusal is not None)
        return found

    def _cases_of(self, units: Sequence[Unit]) -> list[Listed]:
        found: list[list[Listed]] = [[] for _ in units]

        def told(number: int, answer: Answer) -> None:
            found[number] = listed(units[number], answer.get("cases", ()))
            self.skipped += [(name, why) for name, why in answer.get("skipped", ())]
            if answer["status"] != "pass":
                self.skipped.append((units[number].name, f"{answer['status']} while it was traced and judged"))

        self._ask("tracing and judging", [{"do": "list", "unit": unit.to_dict()} for unit in units], told)
        return [item for part in found for item in part]

    def _examined(self, cases: dict[Claim, list[Listed]], folder: Path) -> dict[Claim, _Examined]:
        examined = {claim: _Examined() for claim in cases}
        queue = in_turns(cases)
        paths = [str(folder / str(number)) for number in range(len(queue))]

        def told(number: int, answer: Answer) -> None:
            claim, item = queue[number]
            examined[claim].answers.append((item.shown, answer))
            if answer.get("stored") and examined[claim].stored is None:
                examined[claim].stored = (item, paths[number])

        quick = self._extent.quick
        requests = [item.request("examine", path, quick) for (_, item), path in zip(queue, paths, strict=True)]
        self._ask("examining", requests, told)
        for item in examined.values():
            item.answers.sort(key=lambda answer: answer[0])
        return examined

    def _load(self, examined: dict[Claim, _Examined]) -> None:
        """In processes that have compiled nothing."""
        self._crew.renew()
        stored = [(claim, *item.stored) for claim, item in examined.items() if item.stored is not None]
        if self._extent.quick:
            stored = [stored[place] for place in torch_samples.spread(len(stored), _QUICK_LOADS)]

        def told(number: int, answer: Answer) -> None:
            claim, item, _ = stored[number]
            examined[claim].answers.append((item.shown, answer))

        self._ask("loading artifacts", [item.request("load", path) for _, item, path in stored], told)

    def _of_itself(self, cases: dict[Claim, list[Listed]]) -> list[Row]:
        """What a backend says of itself, and patterns that nothing asked about."""
        rows = []
        if len(self._crew.fingerprints) > 1:
            texts = " and ".join(sorted(self._crew.fingerprints))
            problem = ("fingerprint", f"two processes on one machine have different ones: {texts}")
            rows.append(Row(Claim("backend", "", "", ""), "over-claim", (problem,), cases=1))
        seen = {claim.op for claim in cases}
        missing = [item.name for item in self.backend.patterns() if f"pattern {item.name}" not in seen]
        reason = "no sample has this pattern: give one with --samples"
        wanted = (name for name in missing if self._extent.wants(f"pattern {name}"))
        rows += [Row(Claim(f"pattern {name}", "", "", ""), "not run", detail=reason) for name in sorted(wanted)]
        return rows

    def _under_claims(self, found: Sequence[Listed], claimed: set[Claim]) -> list[Row]:
        """Hints: what it refuses and could do, with what that would save."""
        if self._extent.quick:
            return []
        tried = [item for item in refused(found, self._extent) if item.claim not in claimed]
        rows: dict[int, Row] = {}

        def told(number: int, answer: Answer) -> None:
            saved, item = answer.get("saved_s"), tried[number]
            if saved is not None and saved > 0.0 and item.refusal is not None:
                detail = f"refused with {item.refusal[0]}: {item.refusal[1]}"
                rows[number] = Row(item.claim, "under-claim", cases=1, saved_s=saved, detail=detail)

        end = time.monotonic() + _HINTS_S
        self._ask("trying what is refused", [item.request("save") for item in tried], told, end)
        return [rows[number] for number in sorted(rows)]

    def _ask(self, what: str, requests: Sequence[Any], told: Told, end: float = float("inf")) -> None:
        if not requests:
            return
        done, last = 0, min(end, self._end)

        def counted(number: int, answer: Answer) -> None:
            nonlocal done
            done += 1
            self._progress(f"{what}: {done} of {len(requests)} questions, {time.monotonic() - self.start:.0f} s")
            told(number, answer)

        self._crew.ask(requests, counted, lambda: time.monotonic() < last)


def _late(claim: Claim) -> Row:
    return Row(claim, "not run", detail="the time of the run was over")
