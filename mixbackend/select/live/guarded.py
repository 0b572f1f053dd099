"""Guarded: a challenger's first calls, so that what it raises costs the user nothing but time.

Place: below ``selection``'s caller. Input: a challenger, the champion, the values of a call. Output: the call's
results.
Method: what the graph changes, inputs that it writes into and random numbers, is copied before. What the challenger
raises is not the user's: all is put back, and the champion answers.
Invariants: whichever program answers, the graph has run once for the user; inputs hold what one run leaves, versions
included.
Non-goals: what a backend writes into without having said so (checked calls find that); failures after the first
``GUARDED`` calls, which are those of any program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.execute.run_function import Run
from mixbackend.execute.state_restore import Changes, RepeatedCall

GUARDED = 2
"""Calls of a challenger that are copied for."""


@dataclass(frozen=True)
class Answer:
    """What a guarded call returned.

    Attributes:
        results: of the challenger, or of the champion where it raised.
        error: what it raised.
    """

    results: Sequence[Any]
    error: Exception | None = None


def guarded(challenger: Run, champion: Run, values: list[Any], changes: Changes) -> Answer:
    """A call of a challenger; empties the list.

    Args:
        challenger: runs the graph.
        champion: runs it where the challenger raises.
        values: inputs of the call.
        changes: what running the graph changes.
    """
    call = RepeatedCall(values, changes)
    given = list(values)
    values.clear()
    try:
        return Answer(challenger(list(given)))
    except Exception as error:
        call.put_back()
        return Answer(champion(given), error)
