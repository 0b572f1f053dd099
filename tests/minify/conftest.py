"""Faulty backends are found by name, here and by the processes that minification starts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
