"""The cuBLASLt backend: products of matrices that end in a bias and an activation, on NVIDIA GPUs.

Place: one backend among others, registered under the entry point group ``mixbackend.backends``.
Input: regions of every phase, static or dynamic. Output: straight lines of calls of torch's own operators.
Invariants: products are as exact as ``torch.set_float32_matmul_precision`` says; work is queued on the current stream.
Non-goals: constants. Weights are read as they lie: the library takes every order of both factors.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from mixbackend.backends.common.gpu_library import gpu_availability, library_prior
from mixbackend.backends.common.library import Kernels, LibraryBackend
from mixbackend.contracts import (
    Availability,
    BackendRates,
    DeviceModel,
    ErrorBudget,
    Traits,
)
from mixbackend.contracts.gpu import gpu_fingerprint

_WRITING = 1
"""Rises whenever other calls are written for the same region."""
_ROWS = ("matmul", "matmul/batched", "matmul/unaligned", "matmul/deep")


class CublasLtBackend(LibraryBackend):
    """Products, with bias and activation in the kernel."""

    name: ClassVar[str] = "cublaslt"
    contract_version: ClassVar[str] = "1.0"
    probed: ClassVar[frozenset[str]] = frozenset({"matmul"})

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
            fixed_outputs=True,
            packaged="data",
            deterministic=False,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
            concurrent_compile=True,
            shared_rows=frozenset({"matmul", "matmul/unaligned"}),
        )

    def kernels(self) -> Kernels:
        """Products, linear layers with their activations, and views between them."""
        from mixbackend.backends.cublaslt.library import LIBRARY
        from mixbackend.backends.cublaslt.patterns import PATTERNS
        from mixbackend.backends.cublaslt.support import judge

        return Kernels(judge, PATTERNS, LIBRARY)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """What its kernels usually reach, for any caller."""
        return library_prior(self.name, device, _ROWS)
