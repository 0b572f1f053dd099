"""Convolutions and attention by the kernels that torch has for NVIDIA GPUs."""

from mixbackend.backends.cudnn.backend import CudnnBackend

__all__ = ["CudnnBackend"]
