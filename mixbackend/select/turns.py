"""Turns: candidates run one after another in one process, until the quickest is known or further turns are not worth
it.

Place: below ``comparison``. Input: what each took in its first turn, a way to give one another. Output: seconds of
every turn, added to the first ones.
Method: a machine's speed may change by half within seconds, for all alike, so a turn counts by what it takes beside
the leader's of the same round. A candidate slower by ``FAR_BEHIND`` in every one of the first rounds, or later by
anything in three rounds of four, has no more turns. Where all that are left differ by no more than ``TRIFLE`` in half
of the rounds, which of them runs matters less than more turns would take. Units: seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from mixbackend.select.decision import round_ratios

FAR_BEHIND = 1.3
"""A candidate so many times slower than the leader in both of the first two rounds has no third."""
TRIFLE = 0.03
"""To tell those that differ by no more takes turns for which hundreds of calls must make up."""
FAR_AWAY = 3.0
"""A candidate so many times slower than the quickest in the first turn has no second."""


def take_turns(
    rounds: Mapping[int, list[float]],
    turn: Callable[[int], float],
    fewest: int,
    most: int,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Give turns to all that may be the quickest.

    Args:
        rounds: by number of a candidate, what its first turn took; further ones are added.
        turn: gives one to a candidate, and says what it took.
        fewest: turns of each candidate that is not far behind.
        most: turns of any.
        is_over: whether there is no time for one more round.
    """
    best = min(found[0] for found in rounds.values())
    racing = [number for number, found in rounds.items() if found[0] <= FAR_AWAY * best]
    for done in range(1, most):
        if len(racing) < 2 or is_over():
            return
        # Now forwards, now backwards: a machine that becomes slower by and by is no candidate's disadvantage.
        for number in reversed(racing) if done % 2 else racing:
            rounds[number].append(turn(number))
        racing = still_racing({number: rounds[number] for number in racing}, fewest)


def still_racing(rounds: Mapping[int, Sequence[float]], fewest: int) -> list[int]:
    """Which may be the quickest, of those that took the same turns; one alone if others are behind it, or as quick."""
    leader = _leader(rounds)
    ratios = {number: round_ratios(found, rounds[leader]) for number, found in rounds.items()}
    if len(rounds[leader]) < fewest:
        return [number for number, found in ratios.items() if min(found) <= FAR_BEHIND]
    left = [number for number, found in ratios.items() if not _is_behind(found)]
    as_quick = all(statistics.median(abs(ratio - 1.0) for ratio in ratios[number]) <= TRIFLE for number in left)
    return [leader] if as_quick else left


def _leader(rounds: Mapping[int, Sequence[float]]) -> int:
    """The one that comes nearest to the quickest of each round, by the median."""
    best = [min(turns) for turns in zip(*rounds.values(), strict=True)]
    return min(rounds, key=lambda number: statistics.median(round_ratios(rounds[number], best)))


def _is_behind(ratios: Sequence[float]) -> bool:
    """Whether all but every fourth turn took longer than the leader's."""
    return sum(ratio <= 1.0 for ratio in ratios) <= len(ratios) // 4
