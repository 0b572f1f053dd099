"""What the environment says about costs: whether this machine may be measured, and a table that is given.

Place: below everything of ``cost`` that measures or reads tables.
"""

from __future__ import annotations

import os

SWITCH = "MIXBACKEND_CALIBRATE"
"""Set to ``0``, this environment variable forbids measuring, the look as well: what was calibrated or seen before is
used, and priors for the rest."""

TABLES = "MIXBACKEND_TABLES"
"""This environment variable names a folder with tables of a fleet's own; its files take the place of those shipped."""


def measuring_is_allowed() -> bool:
    """Whether the environment lets this machine be measured or looked at."""
    return os.environ.get(SWITCH, "1") != "0"
