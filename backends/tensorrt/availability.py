"""Whether TensorRT can be used here, or why not, without importing it.

Place: ``Backend.availability``. Input: installed packages, torch's GPU, the driver. Output: one sentence.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import lru_cache

import torch

from mixbackend.backends.common.gpu_library import why_no_gpu
from mixbackend.backends.tensorrt.limits import limits
from mixbackend.backends.tensorrt.versions import Release, driver_release
from mixbackend.contracts import Availability

_BUILT_FOR = ("13", "12", "11")
_DISTRIBUTIONS = (
    "tensorrt",
    *(f"tensorrt-cu{cuda}{part}" for cuda in _BUILT_FOR for part in ("", "-bindings")),
)
_INSTALL = "pip install tensorrt-cu13 (or -cu12: the CUDA that your driver serves)"


def availability() -> Availability:
    """See the module's docstring."""
    version = installed_version()
    reason = _missing(version) or why_no_gpu() or _refusal(version) or _wrong_limits()
    return Availability(not reason, reason, version or "")


@lru_cache(maxsize=1)
def installed_version() -> str | None:
    """Version of the package, under whichever of its names it came; ``None`` if it is not installed."""
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _missing(version: str | None) -> str:
    if importlib.util.find_spec("tensorrt") is None:
        return f"tensorrt is not installed: {_INSTALL}"
    if importlib.util.find_spec("onnx") is None:
        return "onnx is not installed: pip install 'mixbackend[tensorrt]'"
    if version is None:
        return "tensorrt has no version: its installation is damaged"
    try:
        return Release.of(version).refusal
    except ValueError:
        return f"tensorrt calls its version {version!r}, which is none"


def _refusal(version: str | None) -> str:
    """What this GPU and its driver lack."""
    assert version is not None
    driver, needed = driver_release(), _cuda_of_package(version)
    if driver is not None and needed is not None and driver[0] < needed:
        have = ".".join(map(str, driver))
        return f"this TensorRT was built for CUDA {needed}, the driver serves {have}: update the driver"
    newest, here = Release.of(version).newest_capability, torch.cuda.get_device_capability(0)
    if newest is not None and here > newest:
        return f"TensorRT {version} has no kernels for compute capability {here[0]}.{here[1]}: install 10 or newer"
    return ""


def _wrong_limits() -> str:
    try:
        limits()
    except ValueError as error:
        return str(error)
    return ""


def _cuda_of_package(version: str) -> int | None:
    """The CUDA that the installed package was built for; ``None`` if its names do not tell."""
    for cuda in _BUILT_FOR:
        for part in ("", "-libs", "-bindings"):
            try:
                importlib.metadata.version(f"tensorrt-cu{cuda}{part}")
            except importlib.metadata.PackageNotFoundError:
                continue
            return int(cuda)
    return 12 if version.startswith("8.6") else None
