"""Rehearsed calls: the calls of one entry with programs that are recorded, and compared between two calls.

Place: a ``LiveCalls`` where kernels are replayed as CUDA graphs. Input: as there; a stage, on which programs run apart
from what the user has recorded. Output: results of the champion.
Method: a user's call never runs a challenger's recording. Before a call, its values are run by champion or challenger
on the stage for one turn, as ``selection`` says, or for one of the calls by which a program warms up; then the champion
runs the call.
Invariants: as of ``LiveCalls``; the graph runs once for the user: what a turn changes is put back. A turn takes the
user's time, and all of it is charged.
Units: seconds.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from mixbackend.select.live.live_calls import LiveCalls, error_text
from mixbackend.select.live.preparation import Contender
from mixbackend.select.live.steps import why_not

logger = logging.getLogger("mixbackend")

LONGEST_S = 0.03
"""Of a turn, about."""


class Stage(Protocol):
    """Where programs run for a trial."""

    def turn(self, number: int, contender: Contender, values: Sequence[Any]) -> float | None:
        """Seconds of a call of a program; ``None`` for a call by which it warms up.

        Raises:
            Exception: whatever the program raises.
        """
        ...

    def end(self) -> None:
        """Let go of what was recorded on it; a later turn begins anew."""
        ...


class RehearsedCalls(LiveCalls):
    """See the module's docstring.

    Args:
        stage: of this entry.
        arguments: of ``LiveCalls``.
    """

    def __init__(self, stage: Stage, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._stage = stage

    def _compared(self, values: list[Any]) -> Sequence[Any]:
        hold = why_not(self._now())
        if hold is not None and hold.for_good:
            self.selection.stop()
        elif hold is None and self._looking.acquire(blocking=False):
            try:
                self._rehearse(values)
                if not self.selection.trying:
                    with contextlib.suppress(Exception):
                        self._stage.end()
            finally:
                self._looking.release()
        self._follow()
        with self._lock:
            number = self.selection.champion
            contender = self._contenders[number]
            self._running[number] += 1
        return self._counted(values, number, contender)

    def _rehearse(self, values: Sequence[Any]) -> None:
        """One turn, if it is paid for; what it raises costs the challenger its place, or ends all trying."""
        number = self.selection.rehearsal(self._clock(), LONGEST_S)
        if number is None:
            return
        with self._lock:
            contender, of_champion = self._contenders[number], number == self.selection.champion
            self._running[number] += 1
        begin, seconds, error = self._clock(), None, ""
        try:
            seconds = self._stage.turn(number, contender, values)
            error = contender.fault()
        except Exception as raised:
            error = error_text(raised)
        with self._lock:
            self._running[number] -= 1
        self.selection.rehearsed(None if error else seconds, self._clock() - begin)
        if error and of_champion:
            logger.warning("nothing more is tried for a graph: its plan cannot be rehearsed: %s", error)
            self.selection.stop()
        elif error:
            self.selection.withdraw(error)
