"""A machine whose clock is simulated: programs of given speeds, called as a user does, under live selection."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mixbackend.host.warm_up import WarmUp
from mixbackend.plan.choice import Choice
from mixbackend.select.decision import UNTUNED, Decision
from mixbackend.select.live.arbiter import Arbiter
from mixbackend.select.live.challengers import Challenger
from mixbackend.select.live.duel import Ticket
from mixbackend.select.live.overlaps import Overlaps
from mixbackend.select.live.selection import Selection
from mixbackend.select.live.standing import Happened
from mixbackend.select.live.steps import Hold


def challenger(
    name: str, estimated_s: float, error: float = 1.5, build_s: float = 1.0, always: bool = False
) -> Challenger:
    return Challenger(Choice(single=name), estimated_s, error, build_s, always)


@dataclass
class Machine:
    """See the module's docstring.

    Attributes:
        speeds: seconds of a call of each contender.
        noise: relative deviation of a call's seconds.
        gap_s: of the user's own work between two calls.
    """

    speeds: Sequence[float]
    noise: float = 0.02
    gap_s: float = 1e-3
    seed: int = 0
    estimates: Sequence[float] = ()
    known: Decision = UNTUNED
    arbiter: Arbiter = field(default_factory=Arbiter)
    overlaps: Overlaps = field(default_factory=Overlaps)
    warm_up: WarmUp = field(default_factory=WarmUp)
    now: float = 100.0
    fails: Callable[[Ticket], str] = lambda ticket: ""
    gap_after: Callable[[int], float] = lambda contender: 0.0
    symbols: Callable[[], tuple[int, ...]] = tuple
    size_factor: Callable[[tuple[int, ...]], float] = lambda symbols: 1.0
    hold: Callable[[], Hold | None] = lambda: None
    happened: list[Happened] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    beyond_s: float = 0.0
    spent_s: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        estimates = self.estimates or self.speeds
        others = self.known.waiting or [
            challenger(f"b{number}", seconds, build_s=number) for number, seconds in enumerate(estimates) if number
        ]
        of_process = self.arbiter, self.overlaps, self.now
        self.selection = Selection(estimates[0], others, *of_process, known=self.known, warm_up=self.warm_up)

    def call(self) -> int:
        """One call of the user's, and the building that follows where it is wanted; who ran it."""
        sizes = self.symbols()
        ticket = self.selection.begin(self.now, sizes, 0, self.hold())
        self.happened.extend(self.selection.news())
        factor = self.size_factor(sizes) * self.random.lognormvariate(0.0, self.noise)
        call_s = self.speeds[ticket.contender] * factor
        self.beyond_s += max(call_s - self.speeds[self.selection.champion] * factor, 0.0)
        self.spent_s += call_s
        self.now += call_s
        self.selection.end(ticket, self.now, self.fails(ticket))
        self.now += (self.gap_s + self.gap_after(ticket.contender)) * self.random.lognormvariate(0.0, self.noise)
        wanted = self.selection.wanted(self.now)
        if wanted is not None:
            self.selection.built(wanted)
        self.ran.append(ticket.contender)
        return ticket.contender

    def settle(self, most: int = 20_000) -> int:
        """Calls until it is settled; the number of who runs then."""
        for _ in range(most):
            if self.selection.settled(0.0):
                self.call()
                return self.selection.champion
            self.call()
        raise AssertionError(f"not settled after {most} calls: {self.selection.standing()}")
