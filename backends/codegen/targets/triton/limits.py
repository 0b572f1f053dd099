"""What a block can hold: known to the scheduler, which asks the target, and to ``plan``.

Place: apart from ``plan``, so that a target says what it is like without importing what plans.
"""

from __future__ import annotations

RESIDENT = 16384
"""Points of a row that the registers of a block hold, a few values each."""

LEAST_COLUMNS = 16
"""Columns of a block that are neighbours at least: whole sectors of memory."""
