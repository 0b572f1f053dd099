"""Which of several ways to compute the same was the fastest: remembered by what was asked, for later processes too.

Place: beside modules that run ways against one another (plans of kernels, libraries' kernels). Input: a question, which
holds all that the answer depends on: the machine, versions, shapes. Output: the place of the fastest among the ways.
Invariants: an answer is a small number in a file of its own, which appears whole; what cannot be read, or names no way,
counts as unknown; where nothing can be written, this process alone remembers.
Units: seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from mixbackend.backends.common.whole_file import replacing


class FastestWays:
    """Answers, in this process and in a folder.

    Args:
        find_folder: gives the folder, when it is first needed; ``None`` for this process alone.
    """

    def __init__(self, find_folder: Callable[[], Path] | None) -> None:
        self._find_folder = find_folder
        self._known: dict[str, int] = {}

    def place(self, question: str, count: int) -> int | None:
        """The answer to a question about so many ways; ``None`` if it is not known."""
        if question not in self._known:
            found = self._read(question)
            if found is None:
                return None
            self._known[question] = found
        place = self._known[question]
        return place if place < count else None

    def remember(self, question: str, place: int, seconds: Sequence[float]) -> None:
        """Keep an answer, and what each way took; infinite for those that cannot be run.

        Where no way ran, this process alone remembers.
        """
        self._known[question] = place
        if self._folder is None or all(map(math.isinf, seconds)):
            return
        kept = {"place": place, "seconds": [None if math.isinf(item) else item for item in seconds]}
        with contextlib.suppress(OSError), replacing(self._file(self._folder, question)) as file:
            file.write(json.dumps(kept).encode())

    def _read(self, question: str) -> int | None:
        if self._folder is None:
            return None
        try:
            place = json.loads(self._file(self._folder, question).read_text())["place"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return place if isinstance(place, int) and place >= 0 else None

    @staticmethod
    def _file(folder: Path, question: str) -> Path:
        return folder / f"{hashlib.sha256(question.encode()).hexdigest()}.json"

    @cached_property
    def _folder(self) -> Path | None:
        return None if self._find_folder is None else self._find_folder()
