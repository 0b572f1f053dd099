"""What differs from run to run or from machine to machine without meaning anything, taken out of recorded text.

Place: between ``worker`` and the files. Input: dumped text, a report's dictionary. Output: the same, masked.
Masked are fields that a clock or an address fills, by their names; places in source files; folders of this process;
names that compiled functions get from the bytes of our headers. Estimates stay: they come from shipped rates.
"""

from __future__ import annotations

import json
import re
from typing import Any

MASK = "*"

ENDED_WITHOUT_TEXT = "the graph could not be run:"
"""Begins the text of a graph that raised."""

_MEASURED = frozenset({"measured_s", "median_s", "compile_s", "build_s", "first_s", "best_s", "took_s", "elapsed_s"})
_HERE = frozenset({"pid", "process", "path", "folder", "dir", "host", "address", "time", "made_at"})

_PLACES = (
    (re.compile(r"File: \S+:\d+ in \w+, code: "), "code: "),
    (re.compile(r"File \"[^\"]*\", line \d+"), f'File "{MASK}"'),
    (re.compile(r"\bmb_[0-9a-f]{40}\b"), f"mb_{MASK}"),
    (re.compile(r"0x[0-9a-f]{6,}"), f"0x{MASK}"),
    (re.compile(r"/(?:[\w.+-]+/)+[\w.+-]*:\d+"), f"{MASK}:{MASK}"),
    (re.compile(r"/(?:[\w.+-]+/){2,}[\w.+-]+"), MASK),
    (re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|us)\b(?= (?:were|was|took|of compiling))"), f"{MASK} s"),
)


def masked(text: str) -> str:
    """Text without places and addresses."""
    for pattern, mask in _PLACES:
        text = pattern.sub(mask, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def report_text(report: dict[str, Any]) -> str:
    """A report's dictionary as JSON, a field a line."""
    return masked(json.dumps(_without_clock(report), indent=1, sort_keys=True))


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: MASK if _is_masked(key, item) else _without_clock(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_clock(item) for item in value]
    return value


def _is_masked(key: Any, value: Any) -> bool:
    """Whether a clock or this process filled a field; that it is empty means something."""
    return (key in _MEASURED and value is not None) or key in _HERE
