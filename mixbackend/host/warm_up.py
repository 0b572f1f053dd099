"""Warm-up: calls that the user does not wait for, so that what is tried in them need not be paid for by them.

Place: a mixture opens one; ``background`` and ``select.live`` ask whether it goes on. Invariants: threads may open
several at once; it goes on until the last has ended. Asking takes no lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mixbackend.backends.common import forks


class WarmUp:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lock = forks.lock()
        self._open = 0

    @property
    def goes_on(self) -> bool:
        """Whether calls are made for the warm-up alone."""
        return self._open > 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """What is called within is called for the warm-up."""
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
