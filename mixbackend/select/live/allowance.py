"""Allowance: what trying may cost the calls of an entry.

Place: below ``selection``. Input: what calls took. Output: whether a round of turns fits in.
Method: trying has ``SHARE`` of what the entry's calls have taken, less what trying took beyond the champion. Nothing
is tried before calls took ``LEAST_S`` in sum and came ``LEAST_CALLS`` times: an entry that is called twice pays
nothing. A round is given only where what it may cost beyond the champion fits in. What it may cost is what the
challenger took when it ran last; before it ran, its estimate times the estimate's error, and by how much the champion
takes longer than its own.
Invariants: a value. A challenger that is quicker earns nothing back: what trying took never falls.
Units: seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SHARE = 0.05
LEAST_S = 2.0
LEAST_CALLS = 20
TURNS_IN_ROUND = 2
"""Of the challenger."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """See the module's docstring.

    Attributes:
        calls, spent_s: of the entry, whichever program ran them.
        tried_s: what challengers took of it beyond the champion.
    """

    calls: int = 0
    spent_s: float = 0.0
    tried_s: float = 0.0

    def after(self, seconds: float, beyond_s: float = 0.0, calls: int = 1) -> Allowance:
        """What is left after calls that took so long in sum; ``beyond_s`` of it were taken by trying."""
        return replace(
            self, calls=self.calls + calls, spent_s=self.spent_s + seconds, tried_s=self.tried_s + max(beyond_s, 0.0)
        )

    def charged(self, seconds: float) -> Allowance:
        """What is left after trying took so much of the user's time beside calls: loading, copies."""
        return replace(self, spent_s=self.spent_s + seconds, tried_s=self.tried_s + seconds)

    @property
    def is_open(self) -> bool:
        """Whether the entry is called so much that anything may be tried."""
        return self.calls >= LEAST_CALLS and self.spent_s >= LEAST_S

    @property
    def left_s(self) -> float:
        """What trying may still take."""
        return SHARE * self.spent_s - self.tried_s if self.is_open else 0.0

    def fits(self, beyond_s: float) -> bool:
        """Whether trying may take so much."""
        return self.is_open and beyond_s <= self.left_s


def turns_s(challenger_s: float, champion_s: float, turn_s: float, turns: int = TURNS_IN_ROUND) -> float:
    """What turns of a challenger may cost beyond the champion.

    Args:
        challenger_s, champion_s: of a call.
        turn_s: that a turn's counted calls fill.
        turns: so many.
    """
    # The first call of a turn, and those that fill it: the last of them begins before it is full.
    calls = 2 + int(turn_s / max(challenger_s, 1e-9))
    return turns * calls * max(challenger_s - champion_s, 0.0)
