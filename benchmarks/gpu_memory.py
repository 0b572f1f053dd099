"""What a piece of work reserves on a GPU beyond what was there.

Place: below the workers that time whole models. Output: gigabytes; 0 where there is no GPU.
"""

from __future__ import annotations

import torch


def reserved_bytes() -> int:
    """What torch holds on the GPU beside unused memory; the peak is counted from here on."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_reserved()


def gigabytes_since(before: int) -> float:
    """What was reserved at the peak beyond what was there: weights, inputs, and what earlier work keeps."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_reserved() - before) / 1e9, 3)
