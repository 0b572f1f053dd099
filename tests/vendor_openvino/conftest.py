"""The vendor's plug-in from its own source tree, whether or not it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

PLUGIN = Path(__file__).parents[2] / "examples" / "vendor_openvino"
sys.path.insert(0, str(PLUGIN / "src"))
