"""How long a look that is kept in the database holds.

Place: below ``looking``, which takes looks, and ``plan.stored_plans``, which must not keep a plan longer than its look.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

RETRY_AFTER_S = 1800.0


def is_due(row: Mapping[str, Any]) -> bool:
    """Whether a look is to be taken again: other programs disturbed it, and that was half an hour ago.

    Raises:
        KeyError, TypeError, ValueError: it is no look.
    """
    return row["settled"] is not True and time.time() - float(row["at"]) > RETRY_AFTER_S
