"""Rates to assume of a backend before anything was measured.

Place: where no table has a backend, or a probe did not run. A backend's own prior comes first.
"""

from __future__ import annotations

from dataclasses import replace

from mixbackend.contracts import OP_CLASSES, TORCH_POOL, Backend, BackendRates, DeviceModel, HostRates, OpRate
from mixbackend.contracts.gpu_rates import KERNEL_S, ROWS, gpu_rates, library_calls
from mixbackend.cost.device_priors import under_settings
from mixbackend.partitioner.roofline import EFFICIENCY, default_rate

PRIOR_ERROR = 0.5
"""Relative, of what a backend's own prior tells, where it states none."""
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
    if device.place.type != "cpu":
        return _beside_processor(backend, device)
    traits = backend.traits()
    switch = _SWITCH_S if traits.thread_pool != TORCH_POOL else 0.0
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


def _beside_processor(backend: Backend, device: DeviceModel) -> BackendRates:
    """The same on a device that the processor queues work for, with the seconds of both sides."""
    stated = backend.prior(device)
    if stated is not None:
        return stated if stated.host is not None else _told_apart(stated, device)
    calls = library_calls(device)
    if backend.traits().reference:
        return gpu_rates(
            backend.name, device, ROWS, HostRates(_REFERENCE_ENTRY_S, _REFERENCE_CROSSING_S, device.launch_s, calls)
        )
    host = HostRates(_UNKNOWN_ENTRY_S, _UNKNOWN_CROSSING_S, device.launch_s, calls)
    return gpu_rates(backend.name, device, ROWS, host, share=_UNKNOWN_SHARE)


def _told_apart(stated: BackendRates, device: DeviceModel) -> BackendRates:
    """A backend that states one figure for both sides means what its calls cost; the device is queued ahead of."""
    calls: dict[str, float] = {}
    rows = []
    for row, dtype, rate in stated.rates:
        calls[row] = max(calls.get(row, 0.0), rate.overhead_s)
        rows.append((row, dtype, replace(rate, overhead_s=min(rate.overhead_s, KERNEL_S))))
    host = HostRates(stated.entry_s, stated.crossing_s, device.launch_s, tuple(calls.items()))
    return replace(stated, entry_s=0.0, crossing_s=0.0, rates=tuple(rows), host=host)


def anchored(prior: BackendRates, assumed: BackendRates, known: BackendRates) -> BackendRates:
    """Rates to assume beside a reference that was measured: as much better or worse than it as was assumed before.

    What is assumed of one backend must not be held against what was measured of another: where all is assumed, the
    errors of the assumptions fall on all alike.

    Args:
        prior: of the backend.
        assumed, known: of the reference: its prior, and what it really is: as probed here, or as a table says.
    """
    rows = []
    for row, dtype, rate in prior.rates:
        before, after = assumed.rate(row, dtype), known.rate(row, dtype)
        told = after is not None and (after.provenance == "probed" or known.error)
        if before is not None and after is not None and told:
            rate = replace(rate, flops_per_s=rate.flops_per_s * after.flops_per_s / before.flops_per_s)
        rows.append((row, dtype, rate))
    scales = known.memory_scale / assumed.memory_scale, known.weight_scale / assumed.weight_scale
    memory, weights = prior.memory_scale * scales[0], prior.weight_scale * scales[1]
    return replace(prior, rates=tuple(rows), memory_scale=memory, weight_scale=weights)
