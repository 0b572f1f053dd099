"""Epilogues: what a product or convolution does to its result before anybody else sees it.

Place: the vocabulary of ``patterns`` (which ops form an epilogue) and of the kernels' rules (how it is asked for).
Two ways: inside the kernel, where it costs nothing; or in place on the kernel's fresh result. The second is for ops
whose fused form would lose a NaN (oneDNN's relu and clipping return a bound for it, torch returns NaN).
Invariants: an epilogue keeps shapes, and gives what torch gives for infinities and NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mixbackend.backends.onednn.kernels import NO_ACTIVATION
from mixbackend.contracts import Literal, Op, OpView, Unsupported

STAGE = "stage"
"""Part name of the op that carries an epilogue's arguments."""

_CUBE = 0.044715
_SCALE = 0.7978845608028654
"""sqrt(2 / pi), as Python computes it."""


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


def _single(name: str, *literals: str) -> Callable[[Op], Op]:
    operands = tuple(Literal(item) for item in literals)
    return lambda value: Op((f"aten.{name}.default",), (value, *operands), part=STAGE)


def _both(operator: str, first: Op, second: Op) -> Op:
    alpha = (Literal(1),) if operator == "add" else ()
    return Op((f"aten.{operator}.Tensor",), (first, second, *alpha), commutative=True)


def _with_number(operator: str, value: Op, number: float | int) -> Op:
    alpha = (Literal(1),) if operator == "add" else ()
    return Op((f"aten.{operator}.Tensor",), (value, Literal(number), *alpha))


def _sigmoid_product(value: Op) -> Op:
    """``x * sigmoid(x)``."""
    return _both("mul", value, Op(("aten.sigmoid.default",), (value,)))


def _tanh_formula(one: float | int) -> Callable[[Op], Op]:
    """``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`` as GPT-2's code spells it."""

    def tree(value: Op) -> Op:
        cube = Op(("aten.pow.Tensor_Scalar",), (value, Literal(3.0)))
        inner = _both("add", value, _with_number("mul", cube, _CUBE))
        bent = Op(("aten.tanh.default",), (_with_number("mul", inner, _SCALE),))
        return _both("mul", _with_number("mul", value, 0.5), _with_number("add", bent, one))

    return tree


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
    Activation("gelu", _single("gelu", "none"), "gelu", "none"),
    Activation("gelu_tanh", _single("gelu", "tanh"), "gelu", "tanh"),
    Activation("gelu_formula", _tanh_formula(1.0), "gelu", "tanh"),
    Activation("gelu_formula_integer", _tanh_formula(1), "gelu", "tanh"),
    Activation("silu", _single("silu"), "swish"),
    Activation("silu_product", _sigmoid_product, "swish"),
    Activation("sigmoid", _single("sigmoid"), "sigmoid"),
    Activation("tanh", _single("tanh"), "tanh"),
    Activation("hardswish", _single("hardswish"), "hardswish"),
    Activation("leaky_relu", _single("leaky_relu"), "leaky_relu", parameters=("negative_slope",), check=_sloped),
    Activation("relu", _single("relu"), in_place=_aten.relu_.default),
    Activation("hardsigmoid", _single("hardsigmoid"), in_place=_aten.hardsigmoid_.default),
    Activation(
        "hardtanh",
        _single("hardtanh"),
        in_place=_aten.hardtanh_.default,
        parameters=("min_val", "max_val"),
        check=_bounded("min_val", "max_val"),
    ),
    Activation(
        "clamp",
        _single("clamp"),
        in_place=_aten.clamp_.default,
        parameters=("min", "max"),
        check=_bounded("min", "max"),
    ),
)

OPERATIONS: tuple[str, ...] = ("add", "mul")
"""What a kernel does with a second tensor of its result's shape."""
