"""Sharing check: the results of a graph's first call are compared with what they are to share memory with.

Place: around what ``compile.compiling`` returns for a captured graph.
Input: something that runs the graph, and a ``Sharing`` (``graph.aliases``). Output: a callable on the same inputs.
Invariants: a result that shares memory otherwise than in eager is returned as a copy; from then on another function,
eager's, runs the graph. Later calls are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mixbackend.execute.run_function import Run
from mixbackend.graph.aliases import Sharing


class HeldToSharing:
    """See the module's docstring.

    Args:
        run: the graph.
        sharing: what is expected.
        instead: runs the graph from then on if something else is found.
        tell: called with what is found; may raise.
    """

    def __init__(self, run: Run, sharing: Sharing, instead: Run, tell: Callable[[str], None]) -> None:
        self._held = run
        self._sharing = sharing
        self._instead = instead
        self._tell = tell
        self._run: Run = self._first

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        return self._run(arguments)

    def _first(self, arguments: list[Any]) -> Sequence[Any]:
        given = list(arguments)
        results = list(self._held(arguments))
        problems = self._sharing.problems(given, results)
        if not problems:
            self._run = self._held
            return results
        self._run = self._instead
        self._tell("; ".join(f"result {place} {problem}" for place, problem in problems.items()))
        return [_apart(value) if place in problems else value for place, value in enumerate(results)]


def _apart(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone(memory_format=torch.preserve_format)
