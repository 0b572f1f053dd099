"""Cross-size check: whether the quickest plan at a first call is estimated to be so at the other sizes it will run.

Place: below ``comparison``, for graphs with symbolic sizes. Input: what candidates took, their plans, sizes at the ends
of the range that the decision is for. Output: why a candidate is not to win, in words.
Method: a plan's estimate at other sizes is scaled by what its call took beside its estimate here. Estimates of a
library err together, so this says more than the estimate alone.
Invariants: only a candidate that was quicker than the baseline, or nearly as quick, is checked: others do not win.
Units: seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mixbackend.contracts.rehint import Hints, ImpossibleSizesError, with_hints
from mixbackend.plan.planner import Planner
from mixbackend.plan.regime_search import WORTH
from mixbackend.select.decision import MEASURED, Trial
from mixbackend.select.runnable import Runnable

SLOWER_ELSEWHERE = "slower_elsewhere"
"""Quicker at the sizes of the first call, but not at others that it would run as well."""
MARGIN = 1.0 + WORTH
"""A candidate that is estimated to be slower than the baseline by no more is kept; one that is slower here by more does
not win anyway."""


def checked_across_sizes(
    rival: Runnable, trial: Trial, baseline: Runnable, baseline_trial: Trial, sizes: Sequence[Hints], planner: Planner
) -> Trial:
    """What a rival did; one that is estimated to be slower at other sizes does not win.

    Args:
        rival, trial: another placement of the graph, and what it did.
        baseline, baseline_trial: the plan by estimates, and what it did.
        sizes: that the decision is for, beside those of the trials.
        planner: prices plans.
    """
    mine, theirs = baseline_trial.median_s, trial.median_s
    if trial.status != MEASURED or mine is None or theirs is None or theirs > MARGIN * mine:
        return trial
    for hints in sizes:
        limit, seconds = (_promised(*item, hints, planner) for item in ((baseline, mine), (rival, theirs)))
        if limit is not None and seconds is not None and seconds > MARGIN * limit:
            where = ", ".join(f"{symbol} = {value}" for symbol, value in hints.items())
            detail = f"promises {seconds / limit:.2f} times the plan's seconds at {where}"
            return replace(trial, status=SLOWER_ELSEWHERE, detail=detail)
    return trial


def worst_elsewhere(rival: Runnable, baseline: Runnable, sizes: Sequence[Hints], planner: Planner) -> float:
    """What a rival promises to take at the worst of these sizes, beside the baseline there, if both take the same here;
    at least 1."""
    promises = ([_promised(item, 1.0, hints, planner) for item in (rival, baseline)] for hints in sizes)
    return max([1.0, *(mine / theirs for mine, theirs in promises if mine is not None and theirs)])


def _promised(placed: Runnable, took_s: float, hints: Hints, planner: Planner) -> float | None:
    """Seconds of a plan at other sizes; ``None`` if it has no price there."""
    try:
        graph = with_hints(placed.graph, hints)
    except ImpossibleSizesError:
        return None
    (estimated_s,) = planner.reprice(graph, [placed.plan]).seconds
    here_s = placed.plan.estimated_s
    return None if estimated_s is None or here_s <= 0.0 else estimated_s / here_s * took_s
