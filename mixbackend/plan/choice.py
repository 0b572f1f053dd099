"""A choice: what tuning may vary about the placement of one graph; the rest follows from costs.

Place: made by ``tuning``, remembered in the database; read where a graph's layout and plan are made.
Invariants: equal choices give equal plans for equal costs. The default choice leaves everything to the planner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixbackend.contracts import Backend, PlacementError, Plan
from mixbackend.partitioner.plan_data import plan_from_data, plan_to_data
from mixbackend.reporting.records import AS_TRACED, CHANNELS_LAST


@dataclass(frozen=True, slots=True)
class Choice:
    """See the module's docstring.

    Attributes:
        backends: names of those that may take part beside the reference; ``()`` for all.
        single: name of the one backend that runs all it can, ``""`` to place by cost.
        layout: of images, ``as_traced`` or ``channels_last``; ``""`` for the one that is planned cheaper.
        plan: the placement itself, canonical (see ``partitioner.plan_canonical``), for the chosen layout; ``None`` to
            search.
        locked: whether the plan comes from a lock file.
        name: what it is called, ``""`` for what the rest says: a choice with a plan that was searched before keeps its
            name.
        every: whether backends stay in a mixture that save less than estimates are good for.
    """

    backends: tuple[str, ...] = ()
    single: str = ""
    layout: str = ""
    plan: Plan | None = None
    locked: bool = False
    name: str = ""
    every: bool = False

    def __str__(self) -> str:
        if self.name:
            return self.name
        mixture = f"mixture of {', '.join(self.backends)}" if self.backends else "mixture"
        mixture = "mixture of all that save anything" if self.every else mixture
        mixture = f"plan of {len(self.plan.regions)} regions" if self.plan is not None else mixture
        name = self.single or mixture
        return f"{name}, {self.layout}" if self.layout else name

    def allowed(self, backends: Sequence[Backend]) -> tuple[Backend, ...]:
        """The backends that may take part, in their order; the reference always may."""
        names = {self.single} if self.single else set(self.backends)
        if not names:
            return tuple(backends)
        return tuple(backend for backend in backends if backend.name in names or backend.traits().reference)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plan = None if self.plan is None else plan_to_data(self.plan)
        return {
            "backends": list(self.backends),
            "single": self.single,
            "layout": self.layout,
            "plan": plan,
            "name": self.name,
            "every": self.every,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Choice:
        """A choice from plain data.

        Raises:
            ValueError: the data is not that of a choice.
        """
        backends, single, layout = data.get("backends"), data.get("single"), data.get("layout")
        name, every = data.get("name", ""), data.get("every", False) is True
        known = isinstance(single, str) and isinstance(name, str) and layout in ("", AS_TRACED, CHANNELS_LAST)
        if not known or not isinstance(backends, list) or not all(isinstance(name, str) for name in backends):
            raise ValueError(f"{dict(data)} is no choice")
        return cls(tuple(backends), str(single), str(layout), _plan(data.get("plan")), name=name, every=every)


def _plan(data: Any) -> Plan | None:
    try:
        return None if data is None else plan_from_data(data)
    except PlacementError as error:
        raise ValueError(str(error)) from error


DEFAULT = Choice()
