"""The suite's accuracy records as a table: a model per row, what was checked per column.

Place: behind ``mixbackend bench suite --table``. Input: records of ``runner.check_case``, of one run or of several.
Output: text. Pure.
A cell tells the status, our error over eager's (of the tensor that is farthest from float64), seconds, and with ``!``
how many regions were wrong, failed or taken away from a backend although the model's result counts. Below the rows:
what passed, which backends own the ops, and the reason of everything that went other than planned.
Invariants: of several records of one check the last counts; a model that gave no graph is told, and is not counted
among those that passed, since nothing of it was compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mixbackend.benchmarks.one_model.protocol import NOT_JUDGED
from mixbackend.benchmarks.results import Record
from mixbackend.reporting.events import ORDINARY

Check = tuple[str, ...]
"""Phase, precision, and what is not the default: device, mode, backend."""

_DEFAULTS = {"device": "cpu", "mode": "default", "backend": "mixbackend"}
_DETAIL = 300


def table(records: Sequence[Record]) -> str:
    """The whole text."""
    newest = {(record["model"], check_of(record)): record for record in records if record["kind"] == "accuracy"}
    checks = list(dict.fromkeys(check for _, check in newest))
    models = list(dict.fromkeys(model for model, _ in newest))
    lines = [["model", *(" ".join(check) for check in checks)]]
    lines += [[model, *(_cell(newest.get((model, check))) for check in checks)] for model in models]
    passed = [{model for model in models if counts(newest.get((model, check)))} for check in checks]
    lines.append(["passed, with graphs", *(str(len(names)) for names in passed)])
    everywhere = set.intersection(*passed) if passed else set()
    told = [*_aligned(lines), f"passed everything, with graphs: {len(everywhere)} of {len(models)} models"]
    return "\n".join([*told, *_owners(newest), *_reasons(newest)])


def check_of(record: Record) -> Check:
    """The column of a record."""
    more = [record[key] for key, usual in _DEFAULTS.items() if record.get(key, usual) != usual]
    return (record["phase"], record.get("precision", "float32"), *more)


def counts(record: Record | None) -> bool:
    """Whether a check passed and something of ours ran in it."""
    return record is not None and record["status"] == "pass" and record.get("placement", {}).get("graphs", 0) > 0


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    parts = [record["status"] if record["status"] not in NOT_JUDGED else f"({record['status']})"]
    error, eager = record.get("error"), record.get("eager_error")
    if error is not None and eager:
        parts.append(f"{error / eager:.2f}x")
    if record["status"] == "pass" and not counts(record):
        parts.append("no graph")
    parts.append(f"{record.get('seconds', 0.0):.0f}s")
    trouble = sum(_trouble(record).values())
    return " ".join([*parts, *([f"!{trouble}"] if trouble else [])])


def _trouble(record: Record) -> Mapping[str, int]:
    """Events that are no ordinary ones, by kind."""
    events = record.get("placement", {}).get("events", {})
    return {kind: count for kind, count in events.items() if kind not in ORDINARY}


def _owners(newest: Mapping[tuple[str, Check], Record]) -> list[str]:
    nodes: dict[Check, Counter[str]] = {}
    for (_, check), record in newest.items():
        nodes.setdefault(check, Counter()).update(record.get("placement", {}).get("nodes", {}))
    shown = {
        check: ", ".join(f"{name} {count}" for name, count in owned.most_common()) for check, owned in nodes.items()
    }
    return [f"graph nodes in {' '.join(check)}: {text}" for check, text in shown.items() if text]


def _reasons(newest: Mapping[tuple[str, Check], Record]) -> list[str]:
    """A line per check that failed, could not be judged, or passed only alone or with regions replaced."""
    lines = []
    for (model, check), record in newest.items():
        where = f"{model} {' '.join(check)}"
        if record["status"] != "pass":
            lines.append(f"{where}: {record['status']}: {_short(record.get('detail', ''))}{_reference(record)}")
        if record.get("beside_others"):
            lines.append(f"{where}: in a process that had served others: {_short(record['beside_others'])}")
        details = record.get("placement", {}).get("event_details", [])
        lines += [f"{where}: {_short(text)}" for text in details if text.split()[0] in _trouble(record)]
    return lines


def _reference(record: Record) -> str:
    status = (record.get("aot_eager") or {}).get("status")
    return f" [aot_eager: {status}]" if status else ""


def _short(text: str) -> str:
    return " ".join(text.split())[:_DETAIL]


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
