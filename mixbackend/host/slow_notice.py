"""Says what goes on when it takes long: a bar on a terminal, one log line elsewhere; nothing while it is quick.

Place: around work that a user waits for without having asked for it, such as the compilation of a graph.
Input: what is done, and how much of it. Output: on standard error, or through the logger ``mixbackend`` (``INFO``).
Invariants: no thread is left behind, and nothing of it is raised into the work; one bar at a time in a process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from types import TracebackType
from typing import Any

from mixbackend.backends.common import forks

AFTER_S = 3.0
"""What is done by then says nothing."""

logger = logging.getLogger("mixbackend")


class SlowNotice:
    """See the module's docstring; a context manager.

    Args:
        text: what is done.
        total: parts of it.
    """

    def __init__(self, text: str, total: int) -> None:
        self._text, self._total, self._done = text, total, 0
        self._lock = forks.lock()
        self._bar: Any = None
        self._over = False
        self._timer = threading.Timer(AFTER_S, self._show)
        self._timer.daemon = True

    def __enter__(self) -> SlowNotice:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.stop()

    def advance(self) -> None:
        """One more part is done."""
        with self._lock:
            self._done += 1
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self._done)

    def _show(self) -> None:
        from rich.console import Console
        from rich.errors import LiveError

        with self._lock:
            if self._over:
                return
            console = Console(stderr=True)
            if console.is_terminal:
                with contextlib.suppress(LiveError):
                    self._bar = self._started(console)
            else:
                logger.info("%s: %d of %d after %g s", self._text, self._done, self._total, AFTER_S)

    def _started(self, console: Any) -> Any:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = Progress(*columns, console=console, transient=True)
        bar.add_task(self._text, total=self._total, completed=self._done)
        bar.start()
        return bar
