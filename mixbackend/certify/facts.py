"""Facts of a run, the head of a certificate: claims of which backend, by which rule, with what, where."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from typing import Any

import torch

from mixbackend.certify import torch_samples
from mixbackend.certify.units import Extent
from mixbackend.contracts import CONTRACT_VERSION
from mixbackend.contracts.asked import AskedBackend
from mixbackend.host.version import VERSION


def facts_of(backend: AskedBackend, extent: Extent, isolated: bool, seconds: float) -> dict[str, Any]:
    """Plain data; see the module."""
    budget = backend.traits().error_budget
    return {
        "backend": backend.name,
        "version": backend.availability().version,
        "fingerprint": backend.fingerprint(),
        "contract": backend.contract_version,
        "versions": {
            "mixbackend": VERSION,
            "contract": CONTRACT_VERSION,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count() or 1},
        "rule": {
            "factor": budget.factor,
            "floor": budget.floor,
            "text": "distance from float64 at most factor times eager's, plus floor units of the type",
        },
        "seed": 0,
        "quick": extent.quick,
        "ops": list(extent.ops),
        "sources": list(extent.sources),
        "without": torch_samples.missing() if "torch" in extent.sources else "",
        "isolated": isolated,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "seconds": round(seconds, 1),
    }
