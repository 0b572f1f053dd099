"""Paired decision: whether a challenger is faster than the champion, by a sequential sign test on paired rounds.

Place: below ``selection``; asked after every round of ``turns``. Input: the rounds so far. Output: ``Outcome``.

Method: a round is A B B A, so that a machine that becomes slower by and by is a disadvantage to neither program. A
round is won by the program that took less in it; by how much does not matter, so that a pause of the machine spoils
one round and no more. With p the chance that the challenger wins a round, ``faster`` is Wald's sequential test of p =
1/2 against p = ``LIKELY`` = 0.85: a win counts log(2 * 0.85) = 0.531, a loss log(2 * 0.15) = -1.204, and it is decided
where the sum reaches log(1 / ``MISTAKE``) = log(20) = 2.996: after 6 wins and no loss, 8 and one, 11 and two.
``slower`` is the same test with losses for wins (A. Wald, Sequential tests of statistical hypotheses, Ann. Math.
Statist. 16, 1945).

Errors: the exponential of that sum is a supermartingale wherever p <= 1/2, so by Ville's inequality (1939) a
challenger that is no faster is ever called faster with a probability of at most 5%, whenever one looks, however many
rounds there are. With turns of noise s (relative deviation), a round's ratio has the deviation s: its two turns of
each program are a mean of two. A challenger that is 5% better wins a round with p = Phi(0.0513 / s), 0.9948 at s = 2%.
In nine rounds it is found wherever it loses none of the first six, or one of them and none of the next three: p^6 + 6
(1 - p) p^8, 0.9990 at 2%. One that is 5% worse wins a round with 0.0052 and would have to win six in a row: below
10^-12 in any number. One that is as fast wins with 1/2: it replaces the champion with 2.7% in nine rounds and with
less than 5% in any number, which costs nothing but last bits.
Quiet: nine rounds find 5% in 99% of the cases as long as p^6 + 6 (1 - p) p^8 >= 0.99, p >= 0.982, s <= 2.45%. So a
machine is quiet where the ratios of nine rounds deviate by at most ``QUIET`` = 2.4%, by the median distance of two of
them, which no single pause changes; elsewhere there are 30.
Invariants: a function of the rounds alone.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mixbackend.select.decision import TIE
from mixbackend.select.live.turns import Round
from mixbackend.select.turns import FAR_AWAY, FAR_BEHIND

LIKELY = 0.85
"""Chance to win a round, of a challenger that is worth finding."""
MISTAKE = 0.05
"""That one that is no faster is called faster, at most."""
MOST_QUIET, MOST = 9, 30
"""Rounds on a quiet machine, and elsewhere."""
QUIET = 0.024
"""Deviation of rounds' ratios on a quiet machine; see above."""
_NORMAL = 0.9539  # median distance of two draws of a normal distribution, in its deviations
_WIN, _LOSS, _ENOUGH = math.log(2.0 * LIKELY), math.log(2.0 * (1.0 - LIKELY)), math.log(1.0 / MISTAKE)


class Verdict(Enum):
    """Of a challenger, beside the champion."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference found"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What rounds showed.

    Attributes:
        verdict: the decision; ``OPEN`` if one more round is to be had.
        rounds: so many were looked at.
        ratio: median of what the challenger took, as a multiple of the champion's.
        noise: deviation of these ratios; ``None`` while there are too few.
        reason: in words.
    """

    verdict: Verdict
    rounds: int = 0
    ratio: float | None = None
    noise: float | None = None
    reason: str = ""


def decide(rounds: Sequence[Round]) -> Outcome:
    """What so many rounds show: a challenger wins by the time of its calls and must not lose by that between starts."""
    if not rounds:
        return Outcome(Verdict.OPEN)
    ratios = [found.challenger.call_s / found.champion.call_s for found in rounds]
    steps = [found.challenger.step_s / found.champion.step_s for found in rounds]
    noise = _noise(ratios)
    most = MOST_QUIET if noise is not None and noise <= QUIET else MOST
    verdict, reason = _verdict(ratios, steps, most)
    return Outcome(verdict, len(rounds), statistics.median(ratios), noise, reason)


def _verdict(ratios: Sequence[float], steps: Sequence[float], most: int) -> tuple[Verdict, str]:
    if ratios[0] >= FAR_AWAY or (len(ratios) > 1 and min(ratios[:2]) >= FAR_BEHIND):
        return Verdict.SLOWER, "far behind at once"
    over = len(ratios) >= most
    by_call, by_step = _signs(ratios, most), _signs(steps, most)
    if by_call is Verdict.SLOWER:
        return Verdict.SLOWER, "by its calls"
    if by_step is Verdict.SLOWER:
        return Verdict.SLOWER, "from call to call"
    if by_call is Verdict.FASTER:
        # Nothing that speaks against it may be open while there are rounds to be had.
        waits = not over and by_step is Verdict.OPEN and statistics.median(steps) > 1.0 + TIE
        return (Verdict.OPEN, "") if waits else (Verdict.FASTER, "by its calls")
    if over or by_call is Verdict.NO_DIFFERENCE:
        return Verdict.NO_DIFFERENCE, f"after {len(ratios)} rounds"
    return Verdict.OPEN, ""


def _signs(ratios: Sequence[float], most: int) -> Verdict:
    """The sign test on both sides; no difference where the rounds that are left can show none any more."""
    wins = losses = 0
    for ratio in ratios:
        wins, losses = wins + (ratio < 1.0), losses + (ratio > 1.0)
        if _sum(wins, losses) >= _ENOUGH:
            return Verdict.FASTER
        if _sum(losses, wins) >= _ENOUGH:
            return Verdict.SLOWER
    left = most - len(ratios)
    if max(_sum(wins + left, losses), _sum(losses + left, wins)) < _ENOUGH:
        return Verdict.NO_DIFFERENCE
    return Verdict.OPEN


def _sum(wins: int, losses: int) -> float:
    return wins * _WIN + losses * _LOSS


def _noise(ratios: Sequence[float]) -> float | None:
    """Deviation of the ratios' logarithms, whatever a few of them do."""
    if len(ratios) < MOST_QUIET:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    return statistics.median(abs(one - other) for one, other in itertools.combinations(logs, 2)) / _NORMAL
