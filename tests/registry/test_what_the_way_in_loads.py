"""What ``auto()`` does not load: it is needed by few, and everybody would wait for it."""

from __future__ import annotations

import subprocess
import sys

NOT_LOADED = ("networkx", "rich", "fsspec", "mixbackend.locking", "mixbackend.reporting.text")


def test_the_way_in_loads_no_tables_no_consoles_and_no_lock_files() -> None:
    code = (
        "import sys, torch\nbefore = set(sys.modules)\nimport mixbackend\nmixbackend.auto()\n"
        f"print(sorted(name for name in {NOT_LOADED!r} if name in sys.modules and name not in before))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.split("\n")[0] == "[]"
