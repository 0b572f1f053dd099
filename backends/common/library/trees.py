"""Trees: functions of one value as models write them, for the patterns of library backends.

Place: below the patterns of backends that run such functions as epilogues. Each is a function from the pattern of the
value to the pattern of the result.
"""

from __future__ import annotations

from collections.abc import Callable

from mixbackend.contracts import Literal, Op

Tree = Callable[[Op], Op]

STAGE = "stage"
"""Part name of the op that carries an epilogue's arguments."""

_CUBE = 0.044715
_SCALE = 0.7978845608028654
"""sqrt(2 / pi), as Python computes it."""


def single(name: str, *literals: str) -> Tree:
    """One op on a value, with these further arguments."""
    operands = tuple(Literal(item) for item in literals)
    return lambda value: Op((f"aten.{name}.default",), (value, *operands), part=STAGE)


def _both(operator: str, first: Op, second: Op) -> Op:
    alpha = (Literal(1),) if operator == "add" else ()
    return Op((f"aten.{operator}.Tensor",), (first, second, *alpha), commutative=True)


def _with_number(operator: str, value: Op, number: float | int) -> Op:
    alpha = (Literal(1),) if operator == "add" else ()
    return Op((f"aten.{operator}.Tensor",), (value, Literal(number), *alpha))


def sigmoid_product(value: Op) -> Op:
    """``x * sigmoid(x)``."""
    return _both("mul", value, Op(("aten.sigmoid.default",), (value,)))


def tanh_formula(one: float | int) -> Tree:
    """``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))`` as GPT-2's code spells it."""

    def tree(value: Op) -> Op:
        cube = Op(("aten.pow.Tensor_Scalar",), (value, Literal(3.0)))
        inner = _both("add", value, _with_number("mul", cube, _CUBE))
        bent = Op(("aten.tanh.default",), (_with_number("mul", inner, _SCALE),))
        return _both("mul", _with_number("mul", value, 0.5), _with_number("add", bent, one))

    return tree
