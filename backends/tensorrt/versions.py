"""Releases: what differs between versions 8.6 to 11 of TensorRT, as far as verdicts and settings depend on it.

Place: under availability and verdicts, which do not import the package, and under ``api``, which goes around the
differences in the package itself. Input: a version. Output: answers.
Invariants: only this module and ``api`` know of versions. All of what differs:

| | 8.6 | 10 | 11 |
|---|---|---|---|
| networks | explicit batch by flag, weakly typed | strongly typed by flag | strongly typed by flag |
| float16 | builder flag, layers held to float32 one by one | follows the graph | follows the graph |
| bfloat16, int64 | no; int64 is narrowed to int32 | yes | yes |
| profiles shared by contexts | preview feature | preview feature, on | always |
| tactics of cuBLAS, cuDNN | can be switched off | can be switched off | gone |
| context in the caller's memory | a method of its own | a strategy | a strategy |
| size of that memory | ``device_memory_size`` | ``_v2`` from 10.1 | ``_v2`` alone |
| weights by address | numpy arrays alone | yes | yes |
| weights given to an engine anew | no: results were wrong | yes | yes |
| progress while building | log lines | monitor | monitor |
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass

import torch

OLDEST = (8, 6)
BEYOND = (12, 0)

_KNOWN_TO_8_6 = (9, 0)
"""The newest compute capability that kernels of 8.6 exist for."""


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """What can be asked of a version without importing the package."""

    major: int
    minor: int

    @staticmethod
    def of(version: str) -> Release:
        """The release of a version such as ``10.16.1.11``.

        Raises:
            ValueError: the text is no version.
        """
        major, minor = version.split(".")[:2]
        return Release(int(major), int(minor))

    @property
    def refusal(self) -> str:
        """Why it is not served; empty if it is."""
        if OLDEST <= (self.major, self.minor) < BEYOND:
            return ""
        return f"TensorRT {self} is not served, needed {'.'.join(map(str, OLDEST))} to {BEYOND[0] - 1}"

    @property
    def strongly_typed(self) -> bool:
        """Whether every layer computes in the type that the graph says."""
        return self.major >= 10

    @property
    def types(self) -> frozenset[torch.dtype]:
        """Element types of tensors inside and on the border of engines."""
        narrow = frozenset({torch.float32, torch.float16, torch.int32, torch.bool})
        return narrow | {torch.bfloat16, torch.int64} if self.major >= 10 else narrow

    @property
    def why_weights_inside(self) -> str:
        """Why engines must not be built to take weights anew, in words; empty if they may be."""
        if self.major >= 10:
            return ""
        # Seen with 8.6.0 on an H200, through its own interface alone, with the true weights inside and none given anew:
        # float16 transformers that it fuses to one node are off by 1.1 (rms, at a scale of 1.0) as soon as the flag is
        # set, and right without it. Single layers are right with it.
        return f"TensorRT {self} with REFIT gives wrong results for transformers in float16"

    @property
    def newest_capability(self) -> tuple[int, int] | None:
        """The newest compute capability it has kernels for, where newer GPUs are known to be refused."""
        return _KNOWN_TO_8_6 if self.major < 10 else None

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def driver_release() -> tuple[int, int] | None:
    """Version of CUDA that the driver serves; ``None`` without a driver."""
    number = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0:
            return number.value // 1000, number.value % 1000 // 10
    return None
