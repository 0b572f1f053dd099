"""Products of matrices with their epilogues by the kernels that torch has for NVIDIA GPUs."""

from mixbackend.backends.cublaslt.backend import CublasLtBackend

__all__ = ["CublasLtBackend"]
