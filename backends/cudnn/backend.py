"""The cuDNN backend: fused convolutions, and whichever kernel of attention is fastest, on NVIDIA GPUs.

Place: one backend among others, registered under the entry point group ``mixbackend.backends``.
Input: regions of every phase, static or dynamic. Output: straight lines of calls of torch's own operators; weights laid
out once through ``bind``. Kernels that are not always better are tried when a region is compiled (``trials``).
Invariants: torch's switches of cuDNN (TF32, determinism) hold here as well; work is queued on the current stream.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from mixbackend.backends.common.gpu_library import gpu_availability, gpu_rates, why_no_gpu
from mixbackend.contracts import (
    Availability,
    Backend,
    BackendRates,
    CompiledRegion,
    DeviceModel,
    ErrorBudget,
    OpView,
    Pattern,
    Probe,
    Region,
    RegionSketch,
    Traits,
    Unsupported,
    Verdict,
)
from mixbackend.contracts.gpu import gpu_fingerprint

_WRITING = 1
"""Rises whenever other calls are written for the same region."""
_PROBED = frozenset({"convolution", "attention", "copy"})
_SHARES = (
    ("convolution", 12e-6, 0.25),
    ("convolution/channels_last", 12e-6, 0.4),
    ("convolution/grouped", 12e-6, 0.02),
    ("attention", 10e-6, 0.4),
    # Epilogues run in the kernel, while it waits for memory.
    ("pointwise", 0.0, 4.0),
    ("copy", 6e-6, 0.02),
)


class CudnnBackend(Backend):
    """Convolutions with what follows them, and attention."""

    name: ClassVar[str] = "cudnn"
    contract_version: ClassVar[str] = "1.0"

    def availability(self) -> Availability:
        """Whether torch has CUDA and cuDNN here, and may use them."""
        if not why_no_gpu() and not torch.backends.cudnn.is_available():
            return Availability(False, "this torch was built without cuDNN")
        if not torch.backends.cudnn.enabled:
            return Availability(False, "cuDNN is switched off: torch.backends.cudnn.enabled is False")
        version = "" if why_no_gpu() else str(torch.backends.cudnn.version())
        return gpu_availability("cuDNN", version, "cudnn_convolution_relu", "cudnn_convolution_add_relu")

    def fingerprint(self) -> str:
        """Torch's version, the GPU, its libraries and how exact they are to be."""
        exact = f"deterministic={torch.backends.cudnn.deterministic} benchmark={torch.backends.cudnn.benchmark}"
        return f"torch={torch.__version__} writing={_WRITING} {exact} {gpu_fingerprint()}"

    def traits(self) -> Traits:
        """Constant weights are laid out in the time of copying them."""
        return Traits(
            device_types=frozenset({"cuda"}),
            weights="refit",
            capturable=True,
            deterministic=False,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
        )

    def judge(self, view: OpView) -> Verdict:
        """It takes convolutions, attention, and what only moves data between them."""
        from mixbackend.backends.cudnn.support import judge

        return judge(view)

    def patterns(self) -> tuple[Pattern, ...]:
        """Convolutions with a residual and a ReLU."""
        from mixbackend.backends.cudnn.patterns import PATTERNS

        return PATTERNS

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """Views and copies alone are eager's."""
        from mixbackend.backends.common.library import without_work

        return without_work(sketch)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """Shares of the peak that its kernels usually reach."""
        return gpu_rates(self.name, device, _SHARES)

    def probes(self, device: DeviceModel) -> tuple[Probe, ...]:
        """The standard ones of the classes that it has kernels for."""
        return tuple(probe for probe in super().probes(device) if probe.op_class in _PROBED)

    def compile(self, region: Region) -> CompiledRegion:
        """Try what has to be tried, and write the calls."""
        from mixbackend.backends.common.library import compile_region
        from mixbackend.backends.cudnn.library import LIBRARY

        return compile_region(region, LIBRARY, self.name)
