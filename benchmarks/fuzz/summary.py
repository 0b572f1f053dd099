"""A campaign's rows as tables.

Place: the end of the command line. Input: rows. Output: plain data, or text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mixbackend.benchmarks.fuzz.campaign import FINDINGS, Row

_ORDER = ("pass", "torch", "unclear", "ours", "crash", "timeout", "out_of_memory", "broken")


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts by setting and status, nodes by backend, and what was found."""
    settings = sorted({row["setting"] for row in rows})
    by_setting = {name: dict(Counter(row["status"] for row in rows if row["setting"] == name)) for name in settings}
    nodes: dict[str, Counter[str]] = {name: Counter() for name in settings}
    for row in rows:
        nodes[row["setting"]].update(row.get("backends", {}))
    flagged = [
        {name: row.get(name) for name in ("seed", "setting", "status", "findings", "detail")}
        for row in rows
        if row["status"] in FINDINGS
    ]
    return {
        "programs": len(rows),
        "with_gradients": sum(bool(row.get("grad")) for row in rows),
        "with_gradients_default_or_mixture": sum(bool(row.get("grad")) and row["setting"] != "codegen" for row in rows),
        "symbolic": sum(bool(row.get("dynamic")) for row in rows),
        "by_setting": by_setting,
        "nodes": {name: dict(counts.most_common()) for name, counts in nodes.items()},
        "seconds": round(sum(row.get("seconds", 0.0) for row in rows), 1),
        "found": flagged,
    }


def text(summary: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{'setting':10} " + " ".join(f"{name:>13}" for name in _ORDER)]
    for setting, counts in summary["by_setting"].items():
        lines.append(f"{setting:10} " + " ".join(f"{counts.get(name, 0):13}" for name in _ORDER))
    lines.append("")
    for setting, counts in summary["nodes"].items():
        lines.append(f"nodes in {setting}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    grad, both = summary["with_gradients"], summary["with_gradients_default_or_mixture"]
    lines.append(f"{summary['programs']} programs, {grad} with gradients ({both} of them default or mixture),")
    lines.append(f"{summary['symbolic']} with symbolic sizes, {summary['seconds']} s of all workers together")
    for row in summary["found"]:
        first = (row["findings"] or [{}])[0]
        told = f"{first.get('kind')}: {first.get('label')}: {first.get('detail')}" if first else str(row["detail"])
        lines.append(f"seed {row['seed']} {row['setting']}: {row['status']}: {' '.join(told.split())[:200]}")
    return "\n".join(lines)
