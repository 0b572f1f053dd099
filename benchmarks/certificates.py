"""``python -m mixbackend.benchmarks.certificates PART``: the page of what certification says of each backend.

``names``: the backends that can be certified here. ``page``: benchmarks/results/certificates.md from the certificates
of a folder. Place: the ends of ``.ci/certify``, which certifies between them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mixbackend import registry
from mixbackend.certify.pages import COLUMNS, COUNTED, claim_text, kinds

_HEAD = """# What certification says of each backend

Written by the command, which certifies backends that can be used on the machine, each in processes of its own, a core
each ([what is asked](../../docs/reference/backend_contract.md#9-test-it)):

```
{command}
```

- machine: {machine}
- versions: {versions}
- entered: {date}

A claim is an operator with the types of its tensors, static or dynamic, in a phase; a pattern; a whole region. Two
numbers tell of the extent: cases are regions that were compiled and asked everything, and questions are ops of samples
that the backend refused.
"""
_MOST_HINTS = 12

Data = Mapping[str, Any]


def main() -> int:
    """Run one part; the exit status."""
    parser = argparse.ArgumentParser(prog="mixbackend.benchmarks.certificates", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("names", help="of the backends that can be certified here")
    page = parts.add_parser("page", help="write the page")
    page.add_argument("--folder", type=Path, required=True, help="of certificates")
    page.add_argument("--out", type=Path, default=Path("benchmarks/results/certificates.md"))
    given = parser.parse_args()
    if given.part == "names":
        print(*(info.name for info in registry.backends() if info.available), sep="\n")
        return 0
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(given.folder.glob("*.json"))]
    if not found:
        print(f"no certificates in {given.folder}", file=sys.stderr)
        return 1
    done = {data["backend"] for data in found}
    infos = [info for info in registry.backends() if info.name not in done]
    missing = {info.name: info.reason or "there is no certificate of it yet" for info in infos}
    given.out.write_text(page_of(found, missing), encoding="utf-8")
    return 0


def page_of(certificates: Sequence[Data], missing: Mapping[str, str]) -> str:
    """The page.

    Args:
        certificates: plain data of each.
        missing: why backends could not be certified, by name.
    """
    last = max(certificates, key=lambda data: data["date"])
    versions, machine = last["versions"], last["machine"]
    commands = [
        f"{prefix}.ci/certify {' '.join(sorted(names))}"
        for quick, prefix in ((False, ""), (True, "CERTIFY_ARGS=--quick "))
        if (names := [data["backend"] for data in certificates if data["quick"] == quick])
    ]
    text = _HEAD.format(
        command="\n".join(commands),
        machine=f"{machine['cores']} cores, {machine['system']} {machine['machine']}",
        versions=f"mixbackend {versions['mixbackend']}, torch {versions['torch']}, Python {versions['python']}",
        date=last["date"],
    )
    rows = [_row(data) for data in sorted(certificates, key=lambda data: data["backend"])]
    lines = ["", *_table(("backend", "version", *COLUMNS, "cases", "refused questions", "extent", "s"), rows)]
    if missing:
        reasons = [(name, why) for name, why in sorted(missing.items())]
        lines += ["", "## Not certified", "", *_table(("backend", "why"), reasons)]
    for data in sorted(certificates, key=lambda data: data["backend"]):
        lines += _details(data)
    return text + "\n".join(lines) + "\n"


def _row(data: Data) -> list[str]:
    late = any(row["detail"] == "the time of the run was over" for row in data["rows"])
    extent = ("quick" if data["quick"] else "whole") + (", ended early" if late else "")
    cases = sum(row["cases"] for row in data["rows"])
    counts = [str(data["counts"][name]) for name in COUNTED]
    refused = sum(data["refused"].values())
    return [
        data["backend"],
        data["version"],
        *counts,
        str(cases),
        str(refused),
        extent,
        f"{data['seconds']:.0f}",
    ]


def _details(data: Data) -> list[str]:
    wrong = [row for row in data["rows"] if row["verdict"] in ("over-claim", "crashed")]
    hints = [row for row in data["rows"] if row["verdict"] == "under-claim"]
    lines: list[str] = []
    if wrong:
        cells = [(claim_text(row), kinds(row), row["expected"] or row["problems"][0]["text"][:200]) for row in wrong]
        lines += ["", f"## Wrong claims of {data['backend']}", ""]
        lines += _table(("claim", "what does not hold", "seen, or why expected"), cells)
    if hints:
        best = sorted(hints, key=lambda row: -row["saved_s"])[:_MOST_HINTS]
        cells = [(claim_text(row), f"{1e6 * row['saved_s']:.1f} us", row["detail"][:120]) for row in best]
        lines += ["", f"## What {data['backend']} refuses, and computes right", ""]
        lines += [
            f"The first {len(best)} of {len(hints)}, by what claiming them would save per call of the sample.",
            "",
        ]
        lines += _table(("op", "saved", "refusal"), cells)
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = ["| " + " | ".join(_cell(item) for item in row) + " |" for row in (head, *rows)]
    return [cells[0], "|" + "---|" * len(head), *cells[1:]]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
