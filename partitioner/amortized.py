"""Costs that count compiling as well: each call pays its share of the seconds before the first one.

Place: around the cost model of a graph where the user asks for a quick start (``objective: compile_time``).
Input: seconds of running, and of building by backend. Output: a cost model with sums that are seconds of one call of
few, ``CALLS``, building included.
Invariants: pure; the costs underneath are not changed; views are not built.
Non-goals: what caches hold, and that equal regions are built once: a plan of many equal regions builds faster than it
is priced. An op has no share of building if its backend states its seconds (``Supported.cost``); its region has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mixbackend.contracts import BuildSeconds, CostModel, Estimate, OpView, TensorMeta

CALLS = 10
"""Calls that share the seconds of building: a script that is run once, a test, a notebook's cell."""


@dataclass(frozen=True)
class AmortizedCosts(CostModel):
    """See the module's docstring.

    Attributes:
        running: seconds of calls.
        building: by backend.
    """

    running: CostModel
    building: Mapping[str, BuildSeconds]

    def op(self, backend: str, view: OpView) -> Estimate:
        """Running an op once, and its share of being built."""
        found = self.running.op(backend, view)
        if view.op_class == "view":
            return found
        return Estimate(found.seconds + self.building[backend].op_s / CALLS, found.provenance)

    def read(self, backend: str, meta: TensorMeta) -> float:
        """As in running."""
        return self.running.read(backend, meta)

    def weight(self, backend: str, meta: TensorMeta) -> float:
        """As in running."""
        return self.running.weight(backend, meta)

    def write(self, backend: str, meta: TensorMeta) -> float:
        """As in running."""
        return self.running.write(backend, meta)

    def crossing(self, producer: str, consumer: str, meta: TensorMeta) -> float:
        """As in running."""
        return self.running.crossing(producer, consumer, meta)

    def entry(self, backend: str) -> float:
        """Calling a region once, and its share of being built."""
        return self.running.entry(backend) + self.building[backend].region_s / CALLS

    def switch(self, backend: str) -> float:
        """As in running."""
        return self.running.switch(backend)
