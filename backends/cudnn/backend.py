"""The cuDNN backend: fused convolutions, and whichever kernel of attention is fastest, on NVIDIA GPUs.

Place: one backend among others, registered under the entry point group ``mixbackend.backends``.
Input: regions of every phase, static or dynamic. Output: straight lines of calls of torch's own operators; weights laid
out once through ``bind``. Kernels that are not always better are tried when a region is compiled (``trials``).
Invariants: torch's switches of cuDNN (TF32, determinism) hold here as well; work is queued on the current stream.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from mixbackend.backends.common.gpu_library import gpu_availability, library_prior, why_no_gpu
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
_ROWS = (
    "convolution",
    "convolution/channels_last",
    # Constant weights lie as the image does: nothing is turned around at each call.
    "convolution/channels_last/constant",
    "convolution/grouped",
    "convolution/grouped/channels_last",
    "convolution/grouped/channels_last/constant",
    "attention",
    "copy",
)


class CudnnBackend(LibraryBackend):
    """Convolutions with what follows them, and attention."""

    name: ClassVar[str] = "cudnn"
    contract_version: ClassVar[str] = "1.0"
    probed: ClassVar[frozenset[str]] = frozenset({"convolution", "attention", "copy"})

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
            fixed_outputs=True,
            packaged="data",
            capturable=True,
            deterministic=False,
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
        )

    def kernels(self) -> Kernels:
        """Convolutions with a residual and a ReLU, attention, and what only moves data between them."""
        from mixbackend.backends.cudnn.library import LIBRARY
        from mixbackend.backends.cudnn.patterns import PATTERNS
        from mixbackend.backends.cudnn.support import judge

        return Kernels(judge, PATTERNS, LIBRARY)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """What its kernels usually reach, for any caller."""
        return library_prior(self.name, device, _ROWS)
