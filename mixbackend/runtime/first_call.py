"""A graph that is compiled at its first call, when there are values to measure candidates with.

Place: around ``runtime.placed`` and ``runtime.frozen`` while a graph is tuned.
Input: what to do with the values of the first call. Output: a callable like ``PlacedGraph``.
Invariants: compiled once, whatever number of threads call first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from mixbackend.contracts.torch_compat import without_dispatch_modes

Run = Callable[[list[Any]], Sequence[Any]]


class AtFirstCall:
    """See the module's docstring.

    Args:
        make: gives the compiled graph; takes the values of the first call and leaves them as they are.
    """

    def __init__(self, make: Callable[[Sequence[Any]], Run]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._run: Run | None = None

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        """Run the graph; empties the list."""
        run = self._run
        if run is None:
            run = self._made(arguments)
        return run(arguments)

    def _made(self, arguments: Sequence[Any]) -> Run:
        with self._lock:
            if self._run is None:
                with without_dispatch_modes():
                    self._run = self._make(arguments)
            return self._run
