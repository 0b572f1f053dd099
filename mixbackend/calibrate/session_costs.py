"""A session's costs, with rates that are measured when the first graph of a device asks for them.

Place: made with a session; above ``cost.costs``, which reads the tables that this fills.
Input: as of ``SessionCosts``. Output: the cost model of a graph.
Invariants: rates of a device are measured at most once per session; where the environment forbids measuring, the
answers are those of ``SessionCosts``.
"""

from __future__ import annotations

from mixbackend.calibrate.calibration import calibrated_costs, foreign, measuring_is_allowed
from mixbackend.contracts import CostModel
from mixbackend.cost.costs import SessionCosts


class CalibratedCosts(SessionCosts):
    """See the module's docstring."""

    def on_device(self, device_type: str) -> CostModel:
        """Costs on a device: known, or measured now."""
        if not measuring_is_allowed():
            return super().on_device(device_type)
        isolated = foreign(self.backends) if self.config.search.mode == "measure" else frozenset()
        return calibrated_costs(self.backends, device_type, self.database, isolated=isolated)
