"""A certificate for people: markdown for summaries of continuous integration, a badge.

Place: behind ``Certificate``. Input: its plain data, as ``Certificate.to_dict`` gives it or a file holds it. Output:
text, and an endpoint of shields.io as plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

COUNTED = ("proved", "over-claim", "crashed", "expected", "under-claim", "not run")
COLUMNS = ("proved", "over-claims", "crashed", "expected failures", "under-claims", "not run")
_FAILING = ("over-claim", "crashed")
_MOST_ROWS = 40
_MOST_TEXT = 240

Data = Mapping[str, Any]


def markdown(data: Data) -> str:
    """The page."""
    counts, versions, rule = data["counts"], data["versions"], data["rule"]
    verdict = "passes" if data["passed"] else "fails"
    lines = [
        f"# {data['backend']} {verdict} certification" + (" (quick)" if data["quick"] else ""),
        "",
        f"{data['backend']} {data['version']}, contract {data['contract']}; mixbackend {versions['mixbackend']}, "
        f"torch {versions['torch']}, Python {versions['python']}; {data['date']}, {data['seconds']:.0f} s. "
        f"Rule: {rule['text']} (factor {rule['factor']:g}, floor {rule['floor']:g}).",
        "",
        *_table(COLUMNS, [[counts[name] for name in COUNTED]]),
    ]
    if data["without"]:
        lines += ["", f"Less was asked than could be: {data['without']}."]
    if not data["isolated"]:
        lines += ["", "The backend was examined in the asking process: nothing guarded against crashes."]
    lines += _failures(data["rows"])
    lines += _listing("Alarms", data["alarms"])
    lines += _listing("Regressions", data["regressions"])
    lines += _under_claims(data["rows"])
    lines += _not_run(data["rows"])
    return "\n".join(lines) + "\n"


def badge(data: Data) -> dict[str, Any]:
    """An endpoint of shields.io; a quick run says that it is one."""
    counts = data["counts"]
    wrong = counts["over-claim"] + counts["crashed"]
    if wrong:
        message = f"{wrong} of {wrong + counts['proved']} claims fail"
    elif not counts["proved"]:
        message = "nothing proved"
    else:
        message = f"{counts['proved']} claims proved" + ("" if data["passed"] else ", worse than before")
        message += ", without torch's samples" if data["without"] else ""
    return {
        "schemaVersion": 1,
        "label": f"mixbackend certify {data['backend']}" + (" --quick" if data["quick"] else ""),
        "message": message,
        "color": "brightgreen" if data["passed"] else "red",
    }


def claim_text(row: Data) -> str:
    """A claim in words."""
    return " ".join(filter(None, (row["op"], row["dtypes"], row["sizes"], row["phase"])))


def kinds(row: Data) -> str:
    """What does not hold, each kind once."""
    return ", ".join(dict.fromkeys(problem["kind"] for problem in row["problems"]))


def _failures(rows: Sequence[Data]) -> list[str]:
    wrong = [row for row in rows if row["verdict"] in _FAILING]
    if not wrong:
        return []
    cells = [
        (claim_text(row), row["verdict"], kinds(row), row["expected"] or row["problems"][0]["text"]) for row in wrong
    ]
    head = ("claim", "verdict", "what does not hold", "seen, or why expected")
    return ["", "## Wrong claims", "", *_table(head, cells)]


def _under_claims(rows: Sequence[Data]) -> list[str]:
    hints = sorted((row for row in rows if row["verdict"] == "under-claim"), key=lambda row: -row["saved_s"])
    if not hints:
        return []
    cells = [(claim_text(row), f"{1e6 * row['saved_s']:.1f} us", row["detail"]) for row in hints]
    return ["", "## Refused, and computed right", "", *_table(("op", "saved per call of the sample", "refusal"), cells)]


def _not_run(rows: Sequence[Data]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["verdict"] == "not run":
            reasons.setdefault(row["detail"], []).append(claim_text(row))
    if not reasons:
        return []
    cells = [(reason, len(claims), ", ".join(claims[:3])) for reason, claims in sorted(reasons.items())]
    return ["", "## Not run", "", *_table(("reason", "claims", "for instance"), cells)]


def _listing(title: str, items: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {_cell(item)}" for item in items)] if items else []


def _table(head: Sequence[str], rows: Sequence[Iterable[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows[:_MOST_ROWS]]
    if len(rows) > _MOST_ROWS:
        lines += ["", f"and {len(rows) - _MOST_ROWS} more in the JSON."]
    return lines


def _cell(value: object) -> str:
    """Text in one cell: whatever comes from backends breaks no table."""
    text = " ".join(str(value).split()).replace("|", "\\|")
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
