"""How far the functions for results of 16 bits are off, asked by ``triton_answers``.

Distances are relative ones from float64, over all float16 numbers and a dense row of float32 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FUNCTIONS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], float]] = {
    "normal": ("rough_normal", torch.special.ndtr, -6.5),
    "sigmoid": ("rough_sigmoid", torch.sigmoid, -87.0),
}
"""By name: the operator, its meaning, and from where on relative distances count."""

SPECIAL = (float("-inf"), -1e30, -0.0, 0.0, 1e30, float("inf"), float("nan"))


def arguments() -> torch.Tensor:
    """What the functions are held against float64 for; as many as a power of two."""
    halves = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.float16).float()
    dense = torch.linspace(-90, 90, 2 * (1 << 18) - len(halves))
    return torch.cat([halves, dense])


def answer(name: str) -> dict[str, Any]:
    """One of them."""
    from triton_interpreter import library

    from mixbackend.backends.codegen.ir.scalar import Local, apply
    from mixbackend.backends.codegen.targets.triton.compiler import FUNCTION, function_of
    from mixbackend.backends.codegen.targets.triton.operators import operation

    assert library
    x = arguments()
    op, meaning, least = FUNCTIONS[name]

    def evaluated(given: torch.Tensor) -> torch.Tensor:
        node: Any = apply(op, Local(torch.float32, "x"))
        text = f"tl.store(b + tl.arange(0, {len(given)}), {operation(node, ['x'])})"
        body = f"@triton.jit\ndef {FUNCTION}(a, b):\n    x = tl.load(a + tl.arange(0, {len(given)}))\n    {text}\n"
        result = torch.empty_like(given)
        function_of(body)[(1,)](given, result)
        return result

    exact, found = meaning(x.double()), evaluated(x)
    apart, counts = (found.double() - exact).abs(), x >= least
    special = torch.tensor([*SPECIAL, 0.0])
    return {
        "relative": (apart / exact)[counts].nan_to_num(0.0).max().item(),
        "absolute_below": apart[x < least].max().item(),
        "nan": bool(torch.equal(found.isnan(), x.isnan())),
        "special": evaluated(special)[:-1].tolist(),
    }
