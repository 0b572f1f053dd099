"""Parts of records: what the rows of a benchmark told, line by line.

Place: below ``gpu`` and ``tensorrt_models``: their rows may be ended at any time; ``row_process`` reads the parts.
Input: parts as they come. Output: a file with one part per line, and whole records of it.
Invariants: nothing that was told is lost; where two parts tell one thing, the later one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Part = Mapping[str, Any]
"""Of a record: the name of its row as ``row``, and what is new."""


def read(path: Path) -> list[Part]:
    """The parts in a file; none if it is not there yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def keep(part: Part, path: Path) -> None:
    """Print a part and add it to the file."""
    # Rows tell theirs in threads of their own: a line is written at once.
    print(f"{json.dumps(part)}\n", end="", flush=True)
    append(part, path)


def append(part: Part, path: Path) -> None:
    """Add a part to the file, as one line."""
    with path.open("a") as file:
        file.write(f"{json.dumps(part)}\n")


def merged(parts: Iterable[Part]) -> dict[str, dict[str, Any]]:
    """Records by row. A way that is built or called for the first time begins anew, everything else is added."""
    records: dict[str, dict[str, Any]] = {}
    for part in parts:
        record = records.setdefault(part["row"], {"row": part["row"], "ways": {}})
        for key, value in part.items():
            if key != "ways":
                record[key] = {**record.get(key, {}), **value} if isinstance(value, dict) else value
        for way, found in part.get("ways", {}).items():
            anew = not found.keys() & {"ms", "left_out"}
            before = record["ways"].get(way, {})
            kept = {key: before[key] for key in ("built_s",) if key in before} if anew else before
            record["ways"][way] = {**kept, **found}
    return records
