"""Rates to assume of a backend before anything was measured.

Place: where probing is off, or a probe did not run. A backend's own prior comes first.
"""

from __future__ import annotations

from dataclasses import replace

from mixbackend.calibration.device import under_settings
from mixbackend.contracts import OP_CLASSES, TORCH_POOL, Backend, BackendRates, DeviceModel, OpRate
from mixbackend.partitioner.roofline import EFFICIENCY, default_rate

_REFERENCE_ENTRY_S = 2e-6
_REFERENCE_CROSSING_S = 0.1e-6
_UNKNOWN_ENTRY_S = 20e-6
_UNKNOWN_CROSSING_S = 1e-6
_SWITCH_S = 1e-4
"""From one pool of threads to another and back, as seen in models: two teams fall asleep and wake up."""
_UNKNOWN_SHARE = 0.7
"""A backend of which nothing is known must be clearly better by its own word to be chosen."""


def prior_rates(backend: Backend, device: DeviceModel) -> BackendRates:
    """The backend's own prior, or a default: the reference calls torch's kernels one by one, others are unknown."""
    device = under_settings(device)
    traits = backend.traits()
    switches = traits.thread_pool != TORCH_POOL and device.device.startswith("cpu")
    switch = _SWITCH_S if switches else 0.0
    stated = backend.prior(device)
    if stated is not None:
        return replace(stated, switch_s=switch)
    reference = traits.reference
    share, overhead = (1.0, device.launch_s) if reference else (_UNKNOWN_SHARE, device.launch_s)
    rows = []
    for row in dict.fromkeys((*OP_CLASSES, *EFFICIENCY)):
        if row == "view":
            continue
        rate = default_rate(device, row, "float32")
        rows.append((row, "float32", OpRate(overhead, share * rate.flops_per_s)))
    return BackendRates(
        backend=backend.name,
        entry_s=_REFERENCE_ENTRY_S if reference else _UNKNOWN_ENTRY_S,
        crossing_s=_REFERENCE_CROSSING_S if reference else _UNKNOWN_CROSSING_S,
        rates=tuple(rows),
        switch_s=switch,
    )
