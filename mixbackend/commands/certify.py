"""``mixbackend certify NAME``: hold every claim of a backend against samples.

Place: a command; computation is in ``mixbackend.certify``. Output: a page in markdown, or with ``--json`` the
certificate as one object; files where they are named. Progress goes to standard error.
Exit status: 1 if a claim is wrong and not expected to be, an expected failure passes, or something is worse than
before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mixbackend.certify.certification import certify
from mixbackend.certify.units import SOURCES
from mixbackend.commands.output import print_json, progress_shown, quiet_stdout
from mixbackend.commands.this_folder import modules_of_this_folder


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is certified, as the command line says it.

    Attributes:
        name: of the backend, or ``module:class``, which like ``samples`` may name a module of the current folder.
        ops, samples, sources, quick, jobs, timeout_s, limit_s, against, expected: see ``certify``.
    """

    name: str
    ops: tuple[str, ...]
    samples: str
    sources: tuple[str, ...]
    quick: bool
    jobs: int | None
    timeout_s: float
    limit_s: float | None
    against: Path | None
    expected: Path | None


def run(wanted: Wanted, markdown: Path | None, badge: Path | None, as_json: bool) -> int:
    """Certify; the exit status."""
    with modules_of_this_folder(), quiet_stdout(), progress_shown("loading the backend") as show:
        certificate = certify(
            wanted.name,
            ops=wanted.ops,
            samples=wanted.samples,
            sources=wanted.sources or SOURCES,
            quick=wanted.quick,
            jobs=wanted.jobs,
            timeout_s=wanted.timeout_s,
            limit_s=wanted.limit_s,
            against=wanted.against,
            expected=wanted.expected,
            progress=show,
        )
    if markdown is not None:
        # Summaries of continuous integration are files that several steps write into.
        with markdown.open("a", encoding="utf-8") as file:
            file.write(certificate.to_markdown())
    if badge is not None:
        badge.write_text(json.dumps(certificate.to_badge()) + "\n", encoding="utf-8")
    if as_json:
        print_json(certificate.to_dict())
    else:
        print(certificate.to_markdown(), end="")
    return 0 if certificate.passed else 1
