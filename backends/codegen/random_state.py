"""The state of torch's generator on a GPU, as tensors that kernels read.

Place: called by the run function of programs that draw random numbers. Input: the device, and how far the program
moves the generator on. Output: its seed and its offset before, each one int64 on the device.
Invariants: torch's generator is where it would be had eager run the same ops, so that seeds, ``fork_rng`` and
checkpointing hold. In a CUDA graph both tensors are written anew by each replay. Nothing here waits for the GPU.
"""

from __future__ import annotations

import torch

from mixbackend.contracts.torch_compat import recorded_random_state


def take_random_state(device: torch.device | str, amount: int) -> tuple[torch.Tensor, ...]:
    """Seed and offset, and the generator moved on.

    Args:
        device: a GPU; the current one where it has no number.
        amount: to add to the offset.
    """
    device = torch.device(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    if torch.cuda.is_current_stream_capturing():
        return recorded_random_state(index, amount)
    generator = torch.cuda.default_generators[index]
    offset = generator.get_offset()
    generator.set_offset(offset + amount)
    seed = generator.initial_seed()
    where = torch.device("cuda", index)
    # Seeds have no sign, int64 has.
    signed = seed - (1 << 64) if seed >= 1 << 63 else seed
    return tuple(torch.full((1,), value, dtype=torch.int64, device=where) for value in (signed, offset))
