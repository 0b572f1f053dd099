"""The code generator: regions to fused loops, loops to machine code.

The backend is loaded at first use: processes that only compile kernels import modules below, and need nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixbackend.backends.codegen.backend import CodegenBackend

__all__ = ["CodegenBackend"]


def __getattr__(name: str) -> Any:
    if name != "CodegenBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mixbackend.backends.codegen.backend import CodegenBackend

    return CodegenBackend
