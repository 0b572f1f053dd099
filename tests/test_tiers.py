"""Tiers run the tests that they say, and tell how many they leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

FILE = """
import pytest
from conftest import draws

@pytest.mark.smoke
def test_quick(): pass

@pytest.mark.alone
def test_alone(): pass

def test_ordinary(): pass

@pytest.mark.nightly
def test_long(): pass

@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", range(11))
def test_cases(case): pass

@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [7, 8])
def test_few_cases(case): pass

@pytest.mark.parametrize("example", range(draws(1, 3)))
def test_drawn(example): pass
"""

FEW = ["test_few_cases[7]", "test_few_cases[8]"]
SAMPLED = [f"test_cases[{case}]" for case in (0, 5, 10)]
CASES = [f"test_cases[{case}]" for case in range(11)]
DRAWN = [f"test_drawn[{place}]" for place in range(3)]


@pytest.mark.parametrize(
    ("tier", "chosen"),
    [
        ("smoke", ["test_quick"]),
        ("test", ["test_quick", "test_ordinary", *SAMPLED, *FEW, *DRAWN[:1], "test_alone"]),
        ("nightly", ["test_quick", "test_ordinary", "test_long", *CASES, *FEW, *DRAWN, "test_alone"]),
    ],
)
def test_a_tier_runs_its_tests(tier: str, chosen: list[str], pytester: pytest.Pytester) -> None:
    pytester.makeconftest((Path(__file__).parent / "tiers.py").read_text())
    pytester.makepyfile(test_all=FILE)
    result = pytester.runpytest("--tier", tier, "-v", "-p", "no:randomly")
    ran = [line.partition("::")[2].partition(" ")[0] for line in result.outlines if "PASSED" in line]
    assert ran == chosen
    result.assert_outcomes(passed=len(chosen), deselected=17 + (3 if tier == "nightly" else 1) - len(chosen))
