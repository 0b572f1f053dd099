"""The code generator: regions to fused loops, loops to machine code."""

from mixbackend.backends.codegen.backend import CodegenBackend

__all__ = ["CodegenBackend"]
