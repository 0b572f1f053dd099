"""Products: text of the calls that multiply matrices, with what follows them.

Place: rules of ``library``. oneDNN's linear kernel computes ``x @ w.T`` for any strides, so a product of any two
matrices is one call with the second one transposed, which moves nothing.
Constant second operands are brought into their best form when a region is bound: packed for the traced number of rows,
or row-major where there is only one row of float32, since packed weights are no faster to stream than plain ones then.
One row of bfloat16 streams a packed weight three times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from mixbackend.backends.common.library import Scope
from mixbackend.backends.onednn.epilogues import Activation
from mixbackend.backends.onednn.kernels import NO_ACTIVATION, batched, linear, linear_binary, pack_linear
from mixbackend.contracts import RESHAPES, hint_of
from mixbackend.contracts.describe_op import operator_name

Node = torch.fx.Node

_FEWEST_PACKED_ROWS = {torch.bfloat16: 1}
"""By dtype; 2 where nothing is said."""
_TRANSPOSES: dict[str, tuple[tuple[Any, ...], ...]] = {
    "aten.t.default": ((),),
    "aten.transpose.int": ((0, 1), (1, 0)),
    "aten.permute.default": (([1, 0],),),
}
"""Arguments with which an op transposes a matrix."""


def write_mm(scope: Scope, node: Node) -> str:
    """``mm``."""
    return write_product(scope, node, None)


def write_addmm(scope: Scope, node: Node) -> str:
    """``addmm`` with a row or a matrix as bias."""
    bias, left, right = node.args[:3]
    assert isinstance(bias, Node) and isinstance(left, Node) and isinstance(right, Node)
    if _is_row(scope, bias, node):
        return write_product(scope, node, None)
    factors = f"{scope.read(left)}, {scope.read(bias)}, {_second(scope, left, right)}"
    return f"{scope.object(linear_binary(), 'linear_binary')}({factors}, None, 'add')"


def write_bmm(scope: Scope, node: Node) -> str:
    """``bmm``, matrix by matrix."""
    left, right = node.args
    return f"{scope.object(batched)}({scope.text(left)}, {scope.text(right)})"


def write_product(scope: Scope, node: Node, activation: tuple[str, Sequence[Any], str] | None) -> str:
    """One call of the linear kernel for an ``mm``, or an ``addmm`` with a row as bias."""
    name, scalars, algorithm = activation or (NO_ACTIVATION, (), "")
    bias, left, right = _operands(node)
    call = scope.object(linear(), "linear")
    row = "None" if bias is None else row_text(scope, bias)
    tail = f"{name!r}, {scope.text(list(scalars))}, {algorithm!r}"
    return f"{call}({scope.read(left)}, {_second(scope, left, right)}, {row}, {tail})"


def write_combined_product(scope: Scope, node: Node, operation: str, other: str) -> str:
    """One call of the linear kernel that ends with a second tensor of the result's shape."""
    bias, left, right = _operands(node)
    call = scope.object(linear_binary(), "linear_binary")
    row = "None" if bias is None else row_text(scope, bias)
    return f"{call}({scope.read(left)}, {other}, {_second(scope, left, right)}, {row}, {operation!r})"


def as_result_of(scope: Scope, node: Node, other: str) -> str:
    """Text of a tensor in the shape of a product's result, which has as many elements."""
    _, left, right = _operands(node)
    columns = scope.meta(right).shape[1]
    width = str(columns) if isinstance(columns, int) else f"{scope.read(right)}.size(1)"
    return f"{other}.reshape({scope.read(left)}.size(0), {width})"


def reshaped(scope: Scope, text: str, matched: Sequence[Node]) -> str:
    """A kernel's result behind the reshapes of its match."""
    for node in matched:
        name = operator_name(node.target)
        if name in RESHAPES:
            arguments = ", ".join(scope.text(argument) for argument in node.args[1:])
            text = f"{text}.{name.split('.')[1]}({arguments})"
    return text


def in_place(scope: Scope, text: str, activation: Activation, scalars: Sequence[Any]) -> str:
    """A kernel's fresh result, changed where it lies."""
    arguments = "".join(f", {scope.text(item)}" for item in scalars)
    return f"{scope.object(activation.in_place, activation.name)}({text}{arguments})"


def row_text(scope: Scope, bias: Node) -> str:
    """Text of a bias as the kernels want it: they read it as if it had no gaps."""
    if scope.is_constant(bias):
        return scope.prepare(bias, _row)
    flat = "" if scope.meta(bias).rank == 1 else ".reshape(-1)"
    return f"{scope.read(bias)}{flat}.contiguous()"


def _row(bias: torch.Tensor) -> torch.Tensor:
    return bias.detach().reshape(-1).contiguous()


def _is_row(scope: Scope, bias: Node, node: Node) -> bool:
    shape, columns = scope.meta(bias).shape, scope.meta(node).shape[1]
    return shape in ((columns,), (1, columns))


def _operands(node: Node) -> tuple[Node | None, Node, Node]:
    """(bias, left, right) of an ``mm`` or ``addmm``."""
    has_bias = operator_name(node.target) == "aten.addmm.default"
    return node.args[:3] if has_bias else (None, *node.args[:2])  # type: ignore[return-value]


def _second(scope: Scope, left: Node, right: Node) -> str:
    """Text of the second operand, transposed."""
    if scope.is_constant(right) and not scope.is_constant(left):
        return _weight(scope, right, hint_of(scope.meta(left).shape[0]))
    if right.op == "call_function" and right.args[1:] in _TRANSPOSES.get(operator_name(right.target), ()):
        source = right.args[0]
        assert isinstance(source, Node)
        return scope.read(source)
    return f"{scope.read(right)}.t()"


def _weight(scope: Scope, right: Node, rows: int) -> str:
    """Text of a constant second operand ``[in, out]``, made ready for the kernel when the region is bound."""

    def packed(value: torch.Tensor) -> torch.Tensor:
        return pack_linear(value.detach().t(), rows)

    if rows < _FEWEST_PACKED_ROWS.get(scope.meta(right).dtype, 2) or not scope.meta(right).elements():
        return scope.prepare(right, _row_major)
    return scope.prepare(right, packed, ("packed", rows))


def _row_major(value: torch.Tensor) -> torch.Tensor:
    return value.detach().t().contiguous()
