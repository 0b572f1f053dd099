"""The guide for vendors: every Python block runs, in order, in one namespace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "tutorials" / "write_a_backend.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def test_python_blocks_run_in_order(tmp_path):
    """In a process of its own: the guide registers a backend."""
    script = tmp_path / "guide.py"
    script.write_text("\n\n".join(blocks("python")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=240
    )
    assert done.returncode == 0, done.stderr


def test_the_entry_point_is_the_examples_own():
    (entry,) = blocks("toml")
    assert entry.strip() in (ROOT / "examples" / "vendor_openvino" / "pyproject.toml").read_text()


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", GUIDE.read_text())
    assert links and all((GUIDE.parent / link).exists() for link in links)
    paths = re.findall(r"`(tests/[\w/]+\.py)`", GUIDE.read_text())
    assert paths and all((ROOT / path).exists() for path in paths)
