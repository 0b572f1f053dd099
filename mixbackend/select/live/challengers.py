"""Challengers: which programs may take the champion's place, and in which order they are built and tried.

Place: below ``selection``. Input: candidates with their estimates, what the champion takes. Output: those that are
worth a try, the largest expected gain per second of building first.
Method: an estimate is right to a factor, its error. A program that would be slower than the champion even if its
estimate were too high by that factor is not tried. The whole graph on a compiler of whole graphs
(``Traits.compiles_graphs``) is always tried: mixtures are made of estimates, and that one is the measure of them all.
One challenger is built at a time; going by gain over build time makes the sum of what all calls lose meanwhile least
(W. E. Smith, "Various optimizers for single-stage production", 1956).
Units: seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.contracts import Backend, OpGraph
from mixbackend.plan.choice import Choice
from mixbackend.plan.planner import Planner

LEAST_BUILD_S = 0.1
"""What trying takes beside building, where nothing is compiled."""


@dataclass(frozen=True, slots=True)
class Challenger:
    """One way to run the graph that is not built yet.

    Attributes:
        choice: what tells it from the others.
        estimated_s: of a call.
        error: factor that the estimate is right to, at least 1.
        build_s: estimate of what building takes.
        always: whether it is tried whatever its estimate.
    """

    choice: Choice
    estimated_s: float
    error: float
    build_s: float
    always: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        numbers = {"estimated_s": self.estimated_s, "error": self.error, "build_s": self.build_s}
        return {"choice": self.choice.to_dict(), **numbers, "always": self.always}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Challenger:
        """A challenger from plain data.

        Raises:
            KeyError, TypeError, ValueError: the data is not that of a challenger.
        """
        estimated_s, error, build_s = (float(data[name]) for name in ("estimated_s", "error", "build_s"))
        return cls(Choice.from_dict(data["choice"]), estimated_s, error, build_s, data["always"] is True)

    @property
    def least_s(self) -> float:
        """What a call may take at best."""
        return self.estimated_s / self.error

    def gain_s(self, champion_s: float) -> float:
        """Expected saving of a call, at least 0: the call's logarithm is taken as uniform between least and most."""
        least, width = self.least_s, 2 * math.log(self.error)
        if champion_s <= least:
            return 0.0
        if least == 0.0 or width == 0.0:
            return champion_s - self.estimated_s
        reached = min(champion_s, self.most_s)
        return (champion_s * math.log(reached / least) - (reached - least)) / width

    @property
    def most_s(self) -> float:
        """What a call may take at worst."""
        return self.estimated_s * self.error


def worth_trying(challengers: Sequence[Challenger], champion_s: float) -> tuple[Challenger, ...]:
    """Those that may be faster than a champion that takes so long, in the order of the module's docstring.

    Where no gain is expected the cheapest build comes first.
    """

    def order(item: Challenger) -> tuple[float, float, float]:
        return -item.gain_s(champion_s) / max(item.build_s, LEAST_BUILD_S), item.build_s, item.estimated_s

    return tuple(sorted((item for item in challengers if item.always or item.least_s < champion_s), key=order))


def single(planner: Planner, graph: OpGraph, name: str, estimated_s: float, error: float) -> Challenger:
    """The whole graph on one backend."""
    always = planner.backend(name).traits().compiles_graphs
    return Challenger(Choice(single=name), estimated_s, error, build_s(planner, graph, (name,)), always)


def nearest(singles: Sequence[Challenger], most: int) -> tuple[Challenger, ...]:
    """So many with the best estimates, and those that are always tried."""
    near = sorted(singles, key=lambda item: item.estimated_s)
    return (*near[:most], *(item for item in near[most:] if item.always))


def build_s(planner: Planner, graph: OpGraph, names: tuple[str, ...]) -> float:
    """What these backends would take to compile the graph, one after the other."""
    return sum(_alone_s(planner.backend(name), graph) for name in names)


def _alone_s(backend: Backend, graph: OpGraph) -> float:
    return backend.build_seconds(graph.device_type).of(len(graph.placed_nodes))
