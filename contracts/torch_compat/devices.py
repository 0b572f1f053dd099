"""Processors and the streams of GPUs.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

import torch
import torch.fx


def has_fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 itself; elsewhere torch goes through float32, many times slower."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def raw_cuda_stream(device: int) -> int:
    """Handle of the current stream of a GPU: what the driver's functions take."""
    return torch._C._cuda_getCurrentRawStream(device)


def current_cuda_device() -> int:
    """Number of the current GPU, without torch's checks that there is one."""
    return torch._C._cuda_getDevice()
