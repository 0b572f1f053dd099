"""GPUs as fingerprints see them.

Place: part of the fingerprint of every backend with code that runs on torch's CUDA devices.
Invariants: asked only where CUDA is available; cheap; what the user may switch (TF32) is read anew each time.
"""

from __future__ import annotations

from functools import cache

import torch

from mixbackend.contracts.torch_compat import rounds_convolutions, rounds_products


def gpu_fingerprint() -> str:
    """The first GPU, torch's CUDA and cuDNN, and how exactly float32 is multiplied."""
    products, convolutions = ("tf32" if rounds else "float32" for rounds in (rounds_products(), rounds_convolutions()))
    return f"{_product()} products={products} convolutions={convolutions}"


@cache
def _product() -> str:
    major, minor = torch.cuda.get_device_capability(0)
    name = torch.cuda.get_device_name(0)
    return f"{name} sm_{major}{minor} cuda={torch.version.cuda} cudnn={torch.backends.cudnn.version()}"
