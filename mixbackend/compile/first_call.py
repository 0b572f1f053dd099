"""A graph that is compiled at its first call, when there are values to measure candidates with.

Place: around ``compile.placed`` and ``compile.frozen`` while a graph is tuned.
Input: what to do with the values of the first call. Output: a callable like ``PlacedGraph``.
Invariants: compiled once, whatever number of threads call first; what was only needed for that is let go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from mixbackend.contracts.torch_compat import without_dispatch_modes
from mixbackend.execute.run_function import Run


class AtFirstCall:
    """See the module's docstring.

    Args:
        make: gives the compiled graph; takes the values of the first call and leaves them as they are.
        afterwards: called once ``make`` is held no longer.
    """

    def __init__(self, make: Callable[[Sequence[Any]], Run], afterwards: Callable[[], None] = lambda: None) -> None:
        self._make: Callable[[Sequence[Any]], Run] | None = make
        self._afterwards = afterwards
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
            if self._run is not None:
                return self._run
            assert self._make is not None, "it is kept until there is something to run"
            with without_dispatch_modes():
                run = self._make(arguments)
                self._make = None
                self._afterwards()
            self._run = run
            return run
