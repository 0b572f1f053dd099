"""Epilogues: what a product or convolution does to its result before anything else reads it.

Place: the vocabulary of ``patterns`` (which ops form an epilogue) and of the kernels' rules (how it is asked for).
Two ways: inside the kernel, where it costs nothing; or in place on the kernel's fresh result. The second is for ops
with a fused form that would lose a NaN (oneDNN's relu and clipping return a bound for it, torch returns NaN).
Invariants: an epilogue keeps shapes, and gives what torch gives for infinities and NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.backends.common.library.trees import sigmoid_product, single, tanh_formula
from mixbackend.backends.onednn.kernels import NO_ACTIVATION
from mixbackend.contracts import Op, OpView, Unsupported


@dataclass(frozen=True)
class Activation:
    """A function of one value.

    Attributes:
        name: last word of its pattern's name.
        tree: from the pattern of the value to the pattern of the result.
        fused: the kernel's name of it, ``NO_ACTIVATION`` if it runs in place.
        algorithm: the kernel's variant.
        in_place: the operator that runs afterwards, ``None`` if it runs in the kernel.
        parameters: names of the arguments of the op called ``STAGE`` that either form takes.
        check: of that op.
    """

    name: str
    tree: Callable[[Op], Op]
    fused: str = NO_ACTIVATION
    algorithm: str = ""
    in_place: Any = None
    parameters: tuple[str, ...] = ()
    check: Callable[[OpView], Unsupported | None] | None = None


def _sloped(view: OpView) -> Unsupported | None:
    slope = view.argument("negative_slope")
    if isinstance(slope, (int, float)) and not isinstance(slope, bool) and slope != 0:
        return None
    return Unsupported("argument", f"negative_slope={slope!r}: oneDNN takes a number, and loses NaN at 0")


def _bounded(*names: str) -> Callable[[OpView], Unsupported | None]:
    def check(view: OpView) -> Unsupported | None:
        for name in names:
            if not isinstance(view.argument(name), (int, float, type(None))):
                return Unsupported("argument", f"{name}={view.argument(name)!r} is no number")
        return None

    return check


_aten = torch.ops.aten

ACTIVATIONS: tuple[Activation, ...] = (
    Activation("gelu", single("gelu", "none"), "gelu", "none"),
    Activation("gelu_tanh", single("gelu", "tanh"), "gelu", "tanh"),
    Activation("gelu_formula", tanh_formula(1.0), "gelu", "tanh"),
    Activation("gelu_formula_integer", tanh_formula(1), "gelu", "tanh"),
    Activation("silu", single("silu"), "swish"),
    Activation("silu_product", sigmoid_product, "swish"),
    Activation("sigmoid", single("sigmoid"), "sigmoid"),
    Activation("tanh", single("tanh"), "tanh"),
    Activation("hardswish", single("hardswish"), "hardswish"),
    Activation("leaky_relu", single("leaky_relu"), "leaky_relu", parameters=("negative_slope",), check=_sloped),
    Activation("relu", single("relu"), in_place=_aten.relu_.default),
    Activation("hardsigmoid", single("hardsigmoid"), in_place=_aten.hardsigmoid_.default),
    Activation(
        "hardtanh",
        single("hardtanh"),
        in_place=_aten.hardtanh_.default,
        parameters=("min_val", "max_val"),
        check=_bounded("min_val", "max_val"),
    ),
    Activation(
        "clamp",
        single("clamp"),
        in_place=_aten.clamp_.default,
        parameters=("min", "max"),
        check=_bounded("min", "max"),
    ),
)

OPERATIONS: tuple[str, ...] = ("add", "mul")
"""What a kernel does with a second tensor of its result's shape."""
