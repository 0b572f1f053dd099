"""What this machine and its backends can do, in seconds: measured once and kept.

Place: between the backends and the partitioner's cost model.
"""

from mixbackend.calibration.backend_rates import Calibration, measure_rates
from mixbackend.calibration.device import measure_device, prior_device
from mixbackend.calibration.model import ACCELERATOR_BUDGET_S, SWITCH, cost_model, device_model
from mixbackend.calibration.priors import prior_rates

__all__ = [
    "ACCELERATOR_BUDGET_S",
    "SWITCH",
    "Calibration",
    "cost_model",
    "device_model",
    "measure_device",
    "measure_rates",
    "prior_device",
    "prior_rates",
]
