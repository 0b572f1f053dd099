"""The oneDNN backend: library kernels that torch ships but does not always use.

Place: one backend among others, registered under the entry point group ``mixbackend.backends``.
Input: regions of every phase, static or dynamic. Output: straight lines of calls; packed weights through ``bind``.
Invariants: results of torch's own precision (``torch.set_float32_matmul_precision`` and torch's switches of oneDNN hold
here as well); weights are derived from only when bound.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from mixbackend.backends.common.library import Kernels, LibraryBackend
from mixbackend.backends.onednn.kernels import missing_operators
from mixbackend.backends.onednn.rates import prior_rates
from mixbackend.contracts import (
    Availability,
    BackendRates,
    DeviceModel,
    ErrorBudget,
    Traits,
)
from mixbackend.contracts.torch_compat import processor_precision

_WRITING = 1
"""Rises whenever other calls are written for the same region."""


class OneDnnBackend(LibraryBackend):
    """Products, convolutions and attention by the kernels of oneDNN in torch."""

    name: ClassVar[str] = "onednn"
    contract_version: ClassVar[str] = "1.0"
    probed: ClassVar[frozenset[str]] = frozenset({"matmul", "convolution", "attention", "copy"})

    def availability(self) -> Availability:
        """Whether torch was built with oneDNN, has its operators, and may use it."""
        if not torch.backends.mkldnn.is_available():
            return Availability(False, "this torch was built without oneDNN")
        if not torch.backends.mkldnn.enabled:
            return Availability(False, "oneDNN is switched off: torch.backends.mkldnn.enabled is False")
        missing = missing_operators()
        if missing:
            return Availability(False, f"this torch lacks mkldnn operators: {', '.join(missing)}")
        return Availability(True, version=torch.__version__)

    def fingerprint(self) -> str:
        """Torch's version, its threads, the instructions it uses, and how exact products are."""
        return (
            f"torch={torch.__version__} writing={_WRITING} threads={torch.get_num_threads()} "
            f"cpu={torch.backends.cpu.get_cpu_capability()} precision={processor_precision()}"
        )

    def traits(self) -> Traits:
        """Constant weights are packed in the time of copying them."""
        return Traits(
            device_types=frozenset({"cpu"}),
            weights="refit",
            fixed_outputs=True,
            packaged="data",
            error_budget=ErrorBudget(factor=4.0, floor=64.0),
            concurrent_compile=True,
        )

    def kernels(self) -> Kernels:
        """Products and convolutions with their epilogues, attention, and what only moves data between them."""
        from mixbackend.backends.onednn.library import LIBRARY
        from mixbackend.backends.onednn.patterns import PATTERNS
        from mixbackend.backends.onednn.support import judge

        return Kernels(judge, PATTERNS, LIBRARY)

    def prior(self, device: DeviceModel) -> BackendRates | None:
        """A little more than level with torch's own kernels."""
        return prior_rates(self.name, device)
