"""Statistics that normalisations share: their types as eager gives them, the reciprocal of a standard deviation.

Place: below the rules of normalisations and their backwards.
Invariants: what is normalised uses statistics in the compute type; only what leaves is rounded to the announced type.
An op with announced types other than those that eager gives is refused in training, where a later op reads them.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy
import torch

from mixbackend.backends.codegen.ir.scalar import Constant, Expr, apply
from mixbackend.backends.codegen.lower.axes import count_of
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.rules import RefusedError
from mixbackend.backends.codegen.lower.tensor import Index, Tensor
from mixbackend.backends.codegen.lower.variance import Moments
from mixbackend.contracts import TensorMeta


def reciprocal_deviation(
    lowering: Lowering, moments: Moments, count: sympy.Expr, eps: float, dtype: torch.dtype
) -> Tensor:
    """``1 / sqrt(variance + eps)`` of the biased variance, stored as ``dtype``."""
    wide = moments.distances.dtype
    number, epsilon = count_of(count, wide), Constant(wide, float(eps))

    def value(index: Index) -> Expr:
        variance = moments.distances.at(index) / number
        return apply("rsqrt", variance + epsilon)

    return lowering.map(moments.mean.sizes, dtype, value)


def as_announced(lowering: Lowering, tensor: Tensor, place: int) -> Tensor:
    """A statistic in the type that the op's output of that number has."""
    return lowering.in_type(tensor, announced(lowering, place).dtype)


def announced(lowering: Lowering, place: int) -> TensorMeta:
    """Meta of an output that is a tensor."""
    assert lowering.view is not None
    meta = lowering.view.outputs[place]
    assert isinstance(meta, TensorMeta)
    return meta


def is_wanted(lowering: Lowering, place: int) -> bool:
    """Whether this output can be read at all."""
    assert lowering.view is not None
    return isinstance(lowering.view.outputs[place], TensorMeta)


def statistic_dtype(tensor: Tensor, parameters: Iterable[Tensor | None]) -> torch.dtype:
    """Type in which eager saves statistics on the CPU: that of its parameters, the tensor's own without any."""
    return next((parameter.dtype for parameter in parameters if parameter is not None), tensor.dtype)


def check_announced(lowering: Lowering, dtypes: dict[int, torch.dtype]) -> None:
    """Refuse in training what would leave in another type than eager's.

    Args:
        dtypes: that eager gives, by number of the output.

    Raises:
        RefusedError: torch announces another type than eager gives; neither would do for the reader.
    """
    assert lowering.view is not None
    if lowering.view.phase == "inference":
        return
    for place, dtype in dtypes.items():
        meta = lowering.view.outputs[place]
        if isinstance(meta, TensorMeta) and meta.dtype != dtype:
            raise RefusedError("dtype", f"output {place} is announced as {meta.dtype}, eager gives {dtype}")


def check_floating(*tensors: Tensor | None) -> None:
    """Refuse what is not floating.

    Raises:
        RefusedError: a normalisation of integers or complex numbers.
    """
    for tensor in tensors:
        if tensor is not None and not tensor.dtype.is_floating_point:
            raise RefusedError("dtype", f"a normalisation of {tensor.dtype}")


def scaled(lowering: Lowering, parameter: Tensor | None, dtype: torch.dtype, value: Expr, index: Index) -> Expr:
    """A value times a weight, if there is one."""
    return value if parameter is None else value * lowering.cast(parameter.at(index), dtype)


def shifted(lowering: Lowering, parameter: Tensor | None, dtype: torch.dtype, value: Expr, index: Index) -> Expr:
    """A value plus a bias, if there is one."""
    return value if parameter is None else value + lowering.cast(parameter.at(index), dtype)
