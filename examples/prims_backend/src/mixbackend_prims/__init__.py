"""A backend that knows torch's prims and nothing else: a table of small functions on numpy arrays.

``Traits.level`` is ``"prims"``: it is asked about the prims that an op becomes, and its regions are made of them. What
has no prim (products, convolutions, indices) is torch's own kernel here, and a vendor's library elsewhere.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch.fx.node import map_arg

from mixbackend.contracts import (
    Availability,
    Backend,
    CompiledRegion,
    OpRule,
    OpView,
    Region,
    Supported,
    SupportTable,
    Traits,
    Verdict,
)

TYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.int32: np.int32}
TYPES |= {torch.bool: np.bool_}
Kernel = Callable[..., Any]


def broadcast_in_dim(a: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> Any:
    wide = [1] * len(shape)
    for size, dim in zip(a.shape, broadcast_dimensions, strict=True):
        wide[dim] = size
    return np.broadcast_to(a.reshape(wide), shape)


def var(a: Any, dims: Sequence[int], correction: float = 1, **_: Any) -> Any:
    return np.var(a, tuple(dims), ddof=correction)


def iota(length: int, *, start: int, step: int, dtype: torch.dtype, **_: Any) -> Any:
    return start + step * np.arange(length, dtype=TYPES[dtype])


def full(shape: Sequence[int], value: Any, *, dtype: torch.dtype, **_: Any) -> Any:
    return np.full(shape, value, TYPES[dtype])


def split_dim(a: Any, dim: int, outer: int) -> Any:
    return a.reshape(*a.shape[:dim], outer, a.shape[dim] // max(outer, 1), *a.shape[dim + 1 :])


def part(a: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return a[(*[slice(None)] * (dim % a.ndim), slice(start, end, step))]


def along(function: Kernel) -> Kernel:
    return lambda a, dims, **_: function(a, tuple(dims) if a.ndim else ())  # torch lets a number have a dimension 0


def of_torch(function: Kernel) -> Kernel:
    """A kernel of the library, on arrays."""

    def call(*args: Any, **kwargs: Any) -> Any:
        results = function(*map(tensors, args), **{name: tensors(value) for name, value in kwargs.items()})
        if isinstance(results, torch.Tensor):
            return results.numpy()
        return [None if item is None else item.numpy() for item in results]

    return call


def tensors(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [tensors(item) for item in value]
    return torch.from_numpy(np.require(value, requirements="W")) if isinstance(value, np.ndarray) else value


POINTWISE = {
    "abs": np.abs, "add": np.add, "bitwise_and": np.bitwise_and, "bitwise_not": np.invert, "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor, "ceil": np.ceil, "cos": np.cos, "div": np.divide, "eq": np.equal, "exp": np.exp,
    "expm1": np.expm1, "floor": np.floor, "fmod": np.fmod, "ge": np.greater_equal, "gt": np.greater, "log": np.log,
    "le": np.less_equal, "log1p": np.log1p, "lt": np.less, "maximum": np.maximum, "minimum": np.minimum,
    "mul": np.multiply, "ne": np.not_equal, "neg": np.negative, "pow": np.power, "reciprocal": np.reciprocal,
    "remainder": np.remainder, "sign": np.sign, "signbit": np.signbit, "sin": np.sin, "sqrt": np.sqrt,
    "sub": np.subtract, "tanh": np.tanh, "trunc": np.trunc, "where": np.where, "erf": of_torch(torch.erf),
    "rsqrt": lambda a: 1 / np.sqrt(a),
}  # fmt: skip
PRIMS = {
    **POINTWISE,
    "amax": along(np.amax), "amin": along(np.amin), "sum": along(np.sum), "prod": along(np.prod), "var": var,
    "broadcast_in_dim": broadcast_in_dim, "cat": np.concatenate, "clone": lambda a, **_: a.copy(),
    "collapse_view": lambda a, start, end: a.reshape(*a.shape[:start], -1, *a.shape[end + 1 :]),
    "convert_element_type": lambda a, dtype: a.astype(TYPES[dtype]), "full": full, "iota": iota,
    "reshape": np.reshape, "rev": np.flip, "scalar_tensor": lambda value, **_: np.asarray(value), "view_of": np.asarray,
    "squeeze": along(np.squeeze), "split_dim": split_dim, "transpose": np.transpose,
}  # fmt: skip
LIBRARY = "mm bmm convolution convolution_backward index.Tensor index_put gather scatter_add max.dim avg_pool2d"
KERNELS: dict[str, Kernel] = {f"prims.{name}.default": kernel for name, kernel in PRIMS.items()}
for name in (name if "." in name else f"{name}.default" for name in LIBRARY.split()):
    KERNELS[f"aten.{name}"] = of_torch(operator.attrgetter(name)(torch.ops.aten))
KERNELS["aten.slice.Tensor"] = part
KERNELS["aten.copy_.default"] = lambda into, value, *_: (np.copyto(into, value), into)[1]
SIZES = {"aten.sym_size.int": lambda a, dim: a.shape[dim], "aten.sym_numel.default": lambda a: math.prod(a.shape)}
"""Numbers that a region computes; the rest of its arithmetic, and taking results apart, are Python's own functions."""


class PrimsBackend(Backend):
    """Interprets a region: every step is a function of the table."""

    name: ClassVar[str] = "prims"
    contract_version: ClassVar[str] = "1.1"
    table = SupportTable({name: OpRule() for name in KERNELS}, frozenset(TYPES))

    def availability(self) -> Availability:
        return Availability(True, version=np.__version__)

    def fingerprint(self) -> str:
        return f"numpy={np.__version__} torch={torch.__version__} table=1"

    def traits(self) -> Traits:
        return Traits(level="prims", writes_inputs=True)

    def judge(self, view: OpView) -> Verdict:
        return Supported() if view.op == "aten.copy_.default" else self.table.judge(view)

    def compile(self, region: Region) -> CompiledRegion:
        nodes = list(region.graph_module.graph.nodes)
        known = KERNELS | SIZES
        steps = [(node, known.get(str(node.target), node.target)) for node in nodes if node.op == "call_function"]
        inputs, (wanted,) = [node for node in nodes if node.op == "placeholder"], nodes[-1].args

        def run(given: Sequence[Any]) -> list[torch.Tensor]:
            arrays = (value.detach().numpy() if isinstance(value, torch.Tensor) else value for value in given)
            values = dict(zip(inputs, arrays, strict=True))
            for node, kernel in steps:
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                result, meta = kernel(*args, **kwargs), node.meta["val"]
                values[node] = np.asarray(result, TYPES[meta.dtype]) if isinstance(meta, torch.Tensor) else result
            return [torch.from_numpy(np.array(values[node], order="C")) for node in wanted]

        return CompiledRegion(run, strides="contiguous")
