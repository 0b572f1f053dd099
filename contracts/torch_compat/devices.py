"""Processors and the streams of GPUs.

Place: a part of the door; see ``contracts.torch_compat``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def gpu_allocator() -> Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]:
    """``torch.empty_strided`` for the current GPU, past torch's dispatcher."""
    return torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]


def recorded_random_state(device: int, amount: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Seed and offset of a GPU's default generator inside a CUDA graph: tensors that each replay writes anew.

    torch shows them to the backward of attention alone, so the smallest attention that moves the generator on by
    ``amount`` (a multiple of four) is recorded: it takes one number for each head.
    """
    heads = torch.zeros((1, 1, amount, 8), dtype=torch.float16, device=torch.device("cuda", device))
    nothing = (None, None, None, None, None)
    made = torch.ops.aten._efficient_attention_forward(heads, heads, heads, *nothing, 0.5, 0, True)
    return made[2].reshape(1), made[3].reshape(1)
