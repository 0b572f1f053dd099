"""oneDNN's kernels as torch ships them: products of matrices, convolutions, attention."""

from mixbackend.backends.onednn.backend import OneDnnBackend

__all__ = ["OneDnnBackend"]
