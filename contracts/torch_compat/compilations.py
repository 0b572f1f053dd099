"""Dynamo's compilations: functions that are called when they begin and end.

Place: a part of the door; see ``contracts.torch_compat``. Input: two functions. Output: nothing.
Invariants: however often it is asked for, each function is called once when Dynamo begins to compile and nothing else
is being compiled, and once when the last compilation has ended. ``torch._dynamo.reset()`` forgets them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def tell_of_compilations(begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Call functions when Dynamo begins to compile and when it is done; Dynamo is loaded for that."""
    from torch._dynamo.callback import callback_handler

    told = (getattr(callback, "tells", None) for callback in callback_handler.end_callbacks)
    if ends in told:
        return
    callback_handler.register_start_callback(_told(begins))
    callback_handler.register_end_callback(_told(ends))


def _told(function: Callable[[], None]) -> Callable[[Any], None]:
    """As Dynamo calls it: with what is being compiled."""

    def callback(_: Any) -> None:
        function()

    callback.tells = function  # type: ignore[attr-defined]
    return callback
