"""The type of what runs a compiled graph, or a part of one.

Place: below everything in ``execute/``, ``select/`` and ``compile/`` that calls a graph, wraps one or measures one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[[list[Any]], Sequence[Any]]
"""Takes the inputs of a graph in a list, which it empties, and returns the results."""
