"""The example backend from its own source tree, whether or not it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "prims_backend"
sys.path.insert(0, str(EXAMPLE / "src"))
