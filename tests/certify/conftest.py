"""Wrong backends and their samples are found by name, here and by the processes that certification starts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
