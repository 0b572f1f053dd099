"""Nearest-name suggestions for what a user mistyped.

Place: used by the registry, the configuration and the command line when a name is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like ``name``, or ``None`` if none is close; ties go to the alphabetically first."""
    by_folded = {candidate.casefold(): candidate for candidate in sorted(candidates, reverse=True)}
    found = get_close_matches(name.casefold(), sorted(by_folded), n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """``did you mean 'x'?``, or the list of what there is."""
    names = sorted(set(candidates))
    nearest = nearest_name(name, names)
    if nearest is not None:
        return f"did you mean {nearest!r}?"
    return f"there is {', '.join(map(repr, names))}" if names else "there is none"
