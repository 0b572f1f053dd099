"""The cuBLASLt backend: products of matrices that end in a bias and an activation, on NVIDIA GPUs.

Place: one backend among others, registered under the entry point group ``mixbackend.backends``.
Input: regions of every phase, static or dynamic. Output: straight lines of calls of torch's own operators.
Invariants: products are as exact as ``torch.set_float32_matmul_precision`` says; work is queued on the current stream.
Non-goals: constants. Weights are read as they lie: the library takes every order of both factors.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from mixbackend.backends.common.gpu_library import gpu_availability, gpu_rates
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
_SHARES = (
    ("matmul", 8e-6, 0.7),
    ("matmul/batched", 8e-6, 0.4),
    # Epilogues run in the kernel, while it waits for memory.
    ("pointwise", 0.0, 4.0),
)
_PROBED = frozenset({"matmul"})


class CublasLtBackend(Backend):
    """Products, with bias and activation in the kernel."""

    name: ClassVar[str] = "cublaslt"
    contract_version: ClassVar[str] = "1.0"

    def availability(self) -> Availability:
        """Whether torch has CUDA here, and the operator with epilogues."""
        return gpu_availability("cuBLASLt", str(torch.version.cuda), "_addmm_activation")

    def fingerprint(self) -> str:
        """Torch's version, the GPU, its libraries and how exact they are to be."""
        return f"torch={torch.__version__} writing={_WRITING} {gpu_fingerprint()}"

    def traits(self) -> Traits:
        """Live weights."""
        return Traits(
            device_types=frozenset({"cuda"}),
            capturable=True,
            deterministic=False,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
            concurrent_compile=True,
        )

    def judge(self, view: OpView) -> Verdict:
        """It takes products, and views between them."""
        from mixbackend.backends.cublaslt.support import judge

        return judge(view)

    def patterns(self) -> tuple[Pattern, ...]:
        """Linear layers with their activations."""
        from mixbackend.backends.cublaslt.patterns import PATTERNS

        return PATTERNS

    def decline(self, sketch: RegionSketch) -> Unsupported | None:
        """Views alone are eager's."""
        from mixbackend.backends.common.library import without_work

        return without_work(sketch)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """Shares of the peak, which is what the library itself reaches."""
        return gpu_rates(self.name, device, _SHARES)

    def probes(self, device: DeviceModel) -> tuple[Probe, ...]:
        """The standard ones of products."""
        return tuple(probe for probe in super().probes(device) if probe.op_class in _PROBED)

    def compile(self, region: Region) -> CompiledRegion:
        """Write the calls."""
        from mixbackend.backends.common.library import compile_region
        from mixbackend.backends.cublaslt.library import LIBRARY

        return compile_region(region, LIBRARY, self.name)
