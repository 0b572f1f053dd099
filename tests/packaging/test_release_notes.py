"""The notes of a release are the entries of the changelog, a line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def notes(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "release_notes"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_notes_are_the_entries_of_the_changelog() -> None:
    section = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1].partition("\n")[2]
    lines = notes().stdout.splitlines()
    assert len(lines) == section.count("\n- ") > 0
    assert all(line.startswith("- ") for line in lines)
    assert "".join("".join(lines).split()) == "".join(section.split())


def test_a_version_of_which_nothing_is_said_is_an_error() -> None:
    done = notes("9.9")
    assert done.returncode == 1 and done.stderr.startswith("CHANGELOG.md says nothing of 9.9; it has Unreleased")
