"""Whether a row of the tables of rates is to be measured again, and the stamp by which later processes know.

Place: below ``calibration`` and ``prober``. Input: a row as it is kept. Output: a stamp, or whether it is due.
Invariants: what was measured on a quiet machine is never due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

_RETRY_AFTER_S = 1800.0

Now = Callable[[], float]
"""Seconds since the epoch."""


def stamp(settled: bool, now: Now = time.time) -> dict[str, Any]:
    """What to keep in a row that is measured now: whether its timings agree, and when that was."""
    return {"settled": settled, "at": now()}


def is_due(row: Mapping[str, Any] | None, now: Now = time.time) -> bool:
    """What was measured on a busy machine is measured again after a while."""
    if row is None or row.get("settled") is not False:
        return False
    at = row.get("at")
    return not isinstance(at, (int, float)) or now() - at > _RETRY_AFTER_S
