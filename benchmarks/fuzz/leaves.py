"""What programs start from: ``make``; its very text goes into scripts.

Place: run by ``execution`` in a program's namespace, and copied into the scripts that ``script`` writes.
Invariants: equal arguments give equal numbers, whatever the layout; ``WIDE`` changes the type alone.
"""

MAKE = """
import torch
import torch.nn.functional as F


def make(shape, dtype, seed, layout="contiguous", values="normal", grad=False):
    generator = torch.Generator().manual_seed(seed)

    def draw(shape):
        if values == "counter":
            return torch.full(shape, seed % 5, dtype=dtype)
        if dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        if not (dtype.is_floating_point or dtype.is_complex):
            low = 0 if dtype == torch.uint8 or values == "positions" else -9
            return torch.randint(low, 10, shape, generator=generator).to(dtype)
        if dtype.is_complex:
            return torch.randn(*shape, 2, generator=generator).view(*shape, 2).contiguous().view(dtype)[..., 0]
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        if values == "special":
            odd = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0], dtype=torch.float64)
            chosen = torch.randint(0, 25, shape, generator=generator)
            drawn = torch.where(chosen < 5, odd[chosen.clamp(max=4)], drawn)
        if values == "zeros":
            drawn = drawn * 0
        if values == "whole":
            drawn = (drawn * 2).round()
        drawn = drawn.to(dtype)
        return drawn.double() if WIDE else drawn

    if dtype.is_complex and WIDE:
        narrow = draw
        draw = lambda shape: narrow(shape).to(torch.complex128)
    rank = len(shape)
    if layout == "transposed" and rank > 1:
        made = draw(shape[::-1]).permute(*reversed(range(rank)))
    elif layout == "stepped" and rank:
        made = draw((*shape[:-1], 2 * shape[-1]))[..., ::2]
    elif layout == "expanded" and rank:
        made = draw((1, *shape[1:])).expand(shape)
    elif layout == "offset" and rank:
        made = draw((shape[0] + 1, *shape[1:]))[1:]
    elif layout == "channels_last" and rank == 4:
        made = draw(shape).contiguous(memory_format=torch.channels_last)
    elif layout == "padded" and rank:
        made = draw((*shape[:-1], shape[-1] + 3))[..., :shape[-1]]
    else:
        made = draw(shape)
    if grad:
        made = made.detach().requires_grad_()
        if layout == "computed":
            made = made * 1
    return made
"""
