"""What a worker is told: one line of JSON, and the files of a folder.

Place: between ``tuner`` (writes) and ``worker`` (reads).
Files: ``graph.region`` (the graph's canonical text), ``config.json``, and those of ``values``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mixbackend.plan.choice import Choice

MODULE = "mixbackend.compile.trial_worker"
"""What a worker process runs."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One candidate for a worker.

    Attributes:
        folder: where graph, configuration and values lie.
        choice: the candidate.
        threads: of torch's pool.
        memory_bytes: limit of private memory; 0 is none.
    """

    folder: Path
    choice: Choice
    threads: int
    memory_bytes: int = 0

    @property
    def graph_file(self) -> Path:
        """The graph's text."""
        return self.folder / "graph.region"

    @property
    def config_file(self) -> Path:
        """The configuration of the process that tunes."""
        return self.folder / "config.json"

    def to_line(self) -> str:
        """The request as one line."""
        fields = {"folder": str(self.folder), "threads": self.threads, "memory_bytes": self.memory_bytes}
        return json.dumps({**fields, "choice": self.choice.to_dict()})

    @classmethod
    def from_line(cls, line: str) -> TrialRequest:
        """The request from its line."""
        data = json.loads(line)
        return cls(Path(data["folder"]), Choice.from_dict(data["choice"]), data["threads"], data["memory_bytes"])
