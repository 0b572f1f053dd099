"""Random programs on images of sizes that are not known: what makes sizes of sizes, then what reads them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From the value so far and the program's second input."""


def _kernel() -> torch.Tensor:
    return torch.linspace(-1, 1, 4 * 4 * 9).view(4, 4, 3, 3)


SIZES_CHANGE: dict[str, Step] = {
    "conv_transpose": lambda x, y: functional.conv_transpose2d(x, _kernel(), stride=2),
    "conv_transpose padded": lambda x, y: functional.conv_transpose2d(
        x, _kernel(), stride=2, padding=1, output_padding=1
    ),
    "conv strided": lambda x, y: functional.conv2d(functional.pad(x, (2, 2, 2, 2)), _kernel(), stride=2),
    "max pool": lambda x, y: functional.max_pool2d(functional.pad(x, (2, 1, 2, 1)), 3, 2, ceil_mode=True),
    "average pool": lambda x, y: functional.avg_pool2d(functional.pad(x, (2, 1, 2, 1)), 3, 2, ceil_mode=True),
    "half": lambda x, y: x[..., : x.shape[-1] // 2 + 2],
    "twice": lambda x, y: torch.cat([x, x.flip(-1)], -1),
    "beside another": lambda x, y: torch.cat([x, y[..., :1].expand(-1, -1, -1, x.shape[-1])], -2),
    "upsample": lambda x, y: functional.interpolate(x, scale_factor=2),
    "rows": lambda x, y: x.flatten(0, 1).unsqueeze(0)[:, :4].expand(x.shape[0], -1, -1, -1),
}
POINTWISE: dict[str, Step] = {
    "sigmoid": lambda x, y: torch.sigmoid(x) * 2 + 1,
    "power of a size": lambda x, y: (x.abs() + 0.5).pow(y.shape[-1] - 10),
    "size added": lambda x, y: torch.relu(x) + (y.shape[-2] - 7),
    "size divided": lambda x, y: x.tanh() * (y.shape[-1] / 3) + x.shape[-1] // 2,
    "mean": lambda x, y: x - x.mean((-1, -2), keepdim=True) * y.shape[-1],
    "place": lambda x, y: x + torch.arange(x.shape[-1]) / x.shape[-1],
    "softmax": lambda x, y: torch.softmax(x, -1) * x.shape[-1],
    "other's sum": lambda x, y: x * y.sum() / (y.shape[-1] * 5),
}


@dataclass(frozen=True)
class DynamicProgram:
    """A few steps, by name."""

    steps: tuple[str, ...]

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All steps, one after the other; and the sum of all that they return."""
        for name in self.steps:
            x = (SIZES_CHANGE | POINTWISE)[name](x, y)
        return x, x.double().sum().float()

    def __str__(self) -> str:
        return ", ".join(self.steps)


def dynamic_program(seed: int) -> DynamicProgram:
    """The program of a seed; in all of them an op that makes sizes is followed by ops that read them."""
    draw = random.Random(seed)
    steps: list[str] = []
    for _ in range(draw.randint(1, 3)):
        steps.append(draw.choice(list(SIZES_CHANGE)))
        steps += draw.choices(list(POINTWISE), k=draw.randint(1, 3))
    return DynamicProgram(tuple(steps))


def inputs_of(seed: int, call: int) -> list[torch.Tensor]:
    """Two images that share their width alone; each call has other sizes."""
    generator = torch.Generator().manual_seed(100 * seed + call)
    draw = random.Random(1000 * seed + call)
    width = draw.randint(7, 12)
    shapes = [(draw.randint(2, 3), 4, draw.randint(7, 12), width) for _ in range(2)]
    return [torch.randn((shapes[0][0], *shape[1:]), generator=generator) for shape in shapes]
