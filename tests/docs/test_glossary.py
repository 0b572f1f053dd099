"""The glossary is short, sorted, and names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

from mixbackend.select.live import allowance

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
WORDS = re.findall(r"^\| (\w+) \| \S", TEXT, re.MULTILINE)[1:]
PLACES = (ROOT, ROOT / "mixbackend", ROOT / "backends")


def test_at_most_thirty_words_in_order() -> None:
    assert 20 < len(WORDS) <= 30
    assert sorted(set(WORDS)) == WORDS


def test_every_word_says_where_it_is_defined() -> None:
    paths = re.findall(r"`([\w/]+\.py)`", TEXT)
    assert len(paths) > 25
    assert [path for path in paths if not any((place / path).exists() for place in PLACES)] == []


def test_the_allowance_is_what_the_code_has() -> None:
    (line,) = [line for line in TEXT.splitlines() if line.startswith("| allowance ")]
    told = f"{allowance.SHARE:.0%} of what its calls have taken, after {allowance.LEAST_CALLS} calls"
    assert told in line and f"{allowance.LEAST_S:.0f} seconds" in line
