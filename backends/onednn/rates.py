"""What to expect of oneDNN's kernels before anything was measured.

Place: ``Backend.prior``; probes replace these figures once per machine.
Figures: shares of the device's peak, which is what torch's own product of matrices reaches: level with it on
processors for which torch's library is good, twice as fast on others, so a prior says a little more than level. A call
costs more than one of torch's: the library looks its kernel up each time. Pointwise work is that of epilogues, which
the kernels do while they wait for memory; no probe can tell it apart from the product.
"""

from __future__ import annotations

from mixbackend.contracts import BackendRates, DeviceModel, OpRate

_ENTRY_S = 1.0e-6
_CROSSING_S = 0.1e-6
_KERNEL_S = 10e-6
_CALL_S = 1e-6
_EPILOGUE_S = 0.5e-6
_SHARES: tuple[tuple[str, float, float], ...] = (
    ("matmul", _KERNEL_S, 1.0),
    ("matmul/constant", _KERNEL_S, 1.08),
    ("convolution", _KERNEL_S, 0.6),
    ("convolution/channels_last", _KERNEL_S, 0.9),
    ("convolution/channels_last/constant", _KERNEL_S, 1.0),
    ("convolution/grouped", _KERNEL_S, 0.1),
    ("convolution/grouped/channels_last", _KERNEL_S, 0.3),
    ("attention", _CALL_S, 0.4),
    ("pointwise", _EPILOGUE_S, 2.0),
    ("copy", _CALL_S, 0.02),
)


def prior_rates(backend: str, device: DeviceModel) -> BackendRates | None:
    """Rates for the CPU; nothing for other devices."""
    if not device.device.startswith("cpu"):
        return None
    rates = tuple(
        (row, dtype, OpRate(overhead, share * peak))
        for row, overhead, share in _SHARES
        for dtype, peak in device.flops_per_s
    )
    return BackendRates(backend, _ENTRY_S, _CROSSING_S, memory_scale=1.0, rates=rates)
