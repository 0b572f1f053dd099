"""What to expect of ONNX Runtime's CPU kernels before anything was measured.

Place: ``Backend.prior``; probes replace these figures once per machine.
Figures: shares of the device's peak, from measurements of the runtime's matrix library on x86 with AVX-512.
"""

from __future__ import annotations

from mixbackend.contracts import BackendRates, DeviceModel, OpRate

_ENTRY_S = 12e-6
_CROSSING_S = 0.8e-6
_OVERHEAD_S = 1.5e-6
_SHARES: tuple[tuple[str, str, float], ...] = (
    ("matmul", "float32", 0.85),
    ("matmul", "float16", 0.45),
    ("matmul", "bfloat16", 0.35),
    ("convolution", "float32", 0.5),
    ("convolution", "float16", 0.3),
    ("convolution/grouped", "float32", 0.08),
    ("attention", "float32", 0.4),
    ("normalization", "float32", 0.1),
    ("softmax", "float32", 0.15),
    ("reduction", "float32", 0.05),
    ("pointwise", "float32", 0.1),
    ("pooling", "float32", 0.1),
    ("gather", "float32", 0.02),
    ("scatter", "float32", 0.005),
)


def prior_rates(backend: str, device: DeviceModel) -> BackendRates | None:
    """Rates for the CPU; nothing for other devices."""
    if not device.device.startswith("cpu"):
        return None
    rates = tuple((row, dtype, OpRate(_OVERHEAD_S, share * device.peak("float32"))) for row, dtype, share in _SHARES)
    return BackendRates(backend, _ENTRY_S, _CROSSING_S, memory_scale=1.0, rates=rates)
