"""The lock file as text.

Place: behind ``mixbackend tune --lock``. Input: a ``LockFile``. Output: YAML, and the file, replaced as a whole.
Invariants: equal values give equal bytes; ``reading.read_text(lock_text(file)) == file``. A line about a region holds
one fact, or the ops of one module, so that a difference between two files reads as what changed.
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import Any

from mixbackend.backends.common.whole_file import replacing
from mixbackend.locking.model import LockedGraph, LockedRegion, LockFile
from mixbackend.locking.safe_yaml import safe_yaml

_HEADER = """\
# Where every part of a model runs: an entry per compiled graph, an item per region of it. Review it, keep it beside the
# model, and let `lock: {path: ...}` of the configuration name it; with `frozen: true`, any other placement is an error.
# The command under `made_by`, with `--lock` and the name of this file, makes it anew. See docs/how-to/lock_file.md.
"""


def lock_text(file: LockFile) -> str:
    """The file's text."""
    stream = io.StringIO()
    safe_yaml().dump(_file_data(file), stream)
    # Where a line is broken behind a key, the writer leaves a space.
    return _HEADER + "".join(line.rstrip() + "\n" for line in stream.getvalue().splitlines())


def write_lock(path: str | os.PathLike[str], file: LockFile) -> None:
    """Write a file; readers see the old or the new one, never a part.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(path)
    with replacing(target.resolve()) as stream:
        stream.write(lock_text(file).encode())
        # For others to read, as what is under version control: what is being written is for this user alone.
        os.chmod(stream.name, stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644)


def _file_data(file: LockFile) -> dict[str, Any]:
    data = {"version": file.version, "made_with": file.made_with.model_dump(mode="json")}
    if file.joints:
        data["joints"] = [joint.model_dump(mode="json") for joint in file.joints]
    return {**data, "graphs": [_graph_data(graph) for graph in file.graphs]}


def _graph_data(graph: LockedGraph) -> dict[str, Any]:
    data = graph.model_dump(mode="json", exclude={"regions", "chosen", "measured"})
    if graph.measured:
        data["chosen"] = graph.chosen
        data["measured"] = [trial.model_dump(mode="json") for trial in graph.measured]
    data["regions"] = [_region_data(region) for region in graph.regions]
    return data


def _region_data(region: LockedRegion) -> dict[str, Any]:
    data = region.model_dump(mode="json")
    return {key: value for key, value in data.items() if value not in (None, [])}
