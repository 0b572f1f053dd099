"""Every entry of the lowering table against eager, in every element type it claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mixbackend.backends.common.onnx import TABLE
from mixbackend.contracts import Unsupported
from mixbackend.graph.trace import trace_graph

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
ALL = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


class Data:
    """Tensors of one element type, the same at every run."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(0)

    def x(self, *shape: int) -> torch.Tensor:
        """Values around zero, with repeats among integers."""
        values = torch.randn(shape, generator=self._generator) * 2
        if self.dtype is torch.bool:
            return values > 0
        return values.abs().to(self.dtype) if self.dtype is torch.uint8 else values.to(self.dtype)

    def p(self, *shape: int) -> torch.Tensor:
        """Values well inside (0, 1); one for integers."""
        values = torch.rand(shape, generator=self._generator) * 0.8 + 0.1
        return values.to(self.dtype) if self.dtype.is_floating_point else torch.ones(shape, dtype=self.dtype)

    def big(self, *shape: int) -> torch.Tensor:
        """Values over one."""
        return self.x(*shape).abs() + 1 if self.dtype is not torch.bool else self.x(*shape)

    def mask(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator) > 0

    def index(self, bound: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, bound, shape, generator=self._generator)


Arguments = Callable[[Data], tuple[Any, ...]]
CASES: dict[str, list[tuple[Arguments, dict[str, Any]]]] = {}


def case(names: str, arguments: Arguments, **keywords: Any) -> None:
    for name in names.split():
        CASES.setdefault(name, []).append((arguments, keywords))


# --- pointwise
case("exp sin cos erf tan atan sinh cosh tanh asinh abs neg relu sign floor ceil round trunc", lambda d: (d.x(5, 6),))
case("sigmoid silu gelu hardswish hardsigmoid mish softplus leaky_relu elu hardtanh", lambda d: (d.x(5, 6),))
case("log sqrt rsqrt reciprocal log2 log10 asin acos atanh", lambda d: (d.p(5, 6),))
case("acosh", lambda d: (d.big(5, 6) + 0.1 if d.dtype.is_floating_point else d.big(5, 6),))
case("add.Tensor mul.Tensor div.Tensor maximum minimum", lambda d: (d.x(5, 6), d.big(6)))
case("sub.Tensor rsub.Tensor", lambda d: (d.x(5, 6), d.x(5, 1)))
case("add.Tensor sub.Tensor", lambda d: (d.x(5, 6), d.x(6)), alpha=2)
case("add.Scalar sub.Scalar rsub.Scalar mul.Scalar", lambda d: (d.x(5, 6), 3))
case("add.Scalar sub.Scalar rsub.Scalar", lambda d: (d.x(5, 6), 3), alpha=2)
case("div.Scalar", lambda d: (d.x(5, 6), 3))
case("div.Scalar", lambda d: (d.x(5, 6), 1.7))
case("add.Tensor mul.Tensor", lambda d: (d.x(5, 6), torch.tensor(3)))
case("add.Tensor mul.Tensor div.Tensor", lambda d: (d.x(4), torch.randint(1, 5, (4,), dtype=torch.int64)))
case("div.Tensor_mode", lambda d: (d.x(40), 2.5 if d.dtype.is_floating_point else 3), rounding_mode="floor")
case("div.Tensor_mode", lambda d: (d.x(40), 2.5 if d.dtype.is_floating_point else 3), rounding_mode="trunc")
case("div.Tensor_mode", lambda d: (d.x(8), d.big(8)), rounding_mode=None)
case("div.Scalar_mode", lambda d: (d.x(40), -2), rounding_mode="floor")
case("floor_divide floor_divide.Scalar", lambda d: (d.x(40), 2))
case("floor_divide", lambda d: (d.x(40), d.big(40)))
case("remainder.Tensor fmod.Tensor", lambda d: (d.x(40), d.big(40)))
case("remainder.Scalar fmod.Scalar", lambda d: (d.x(40), -2))
for exponent in (2, 3, 0.5, -1, -0.5, 1.3, 4):
    case("pow.Tensor_Scalar", lambda d, exponent=exponent: (d.p(5, 6), exponent))
case("pow.Tensor_Tensor", lambda d: (d.p(5, 6), d.x(6)))
case("pow.Scalar", lambda d: (2.5, d.x(5, 6)))
case("addcmul addcdiv", lambda d: (d.x(5, 6), d.x(5, 6), d.big(6)))
case("addcmul addcdiv", lambda d: (d.x(5, 6), d.x(5, 6), d.big(6)), value=0.5)
case("lerp.Scalar", lambda d: (d.x(5), d.x(5), 0.7))
case("lerp.Tensor", lambda d: (d.x(40), d.x(40), d.x(40)))
case("clamp", lambda d: (d.x(5, 6), -1, 1))
case("clamp", lambda d: (d.x(5, 6), None, 1))
case("clamp.Tensor", lambda d: (d.x(5, 6), d.x(6), d.x(6)))
case("clamp_min clamp_max", lambda d: (d.x(5, 6), 1))
case("clamp_min.Tensor clamp_max.Tensor", lambda d: (d.x(5, 6), d.x(6)))
case("where.self", lambda d: (d.mask(5, 1), d.x(5, 6), d.x(6)))
case("where.self", lambda d: (d.mask(5, 1), d.x(5, 6), torch.tensor(2, dtype=torch.int64)))
case("masked_fill.Scalar", lambda d: (d.x(5, 6), d.mask(6), 1))
case("masked_fill.Tensor", lambda d: (d.x(5, 6), d.mask(6), torch.tensor(1).to(d.dtype)))
case("native_dropout_backward", lambda d: (d.x(5, 6), d.mask(5, 6), 1.25))
case("nan_to_num", lambda d: (torch.where(d.mask(5, 6), torch.tensor(float("nan"), dtype=d.dtype), d.x(5, 6)),))
case("threshold", lambda d: (d.x(5, 6), 0.5, 0.1))
case("threshold_backward", lambda d: (d.x(5, 6), d.x(5, 6), 0))
case("_prelu_kernel", lambda d: (d.x(5, 6), d.x(1, 6)))
case("gelu", lambda d: (d.x(5, 6),), approximate="tanh")
case("gelu_backward", lambda d: (d.x(5, 6), d.x(5, 6)))
case("gelu_backward", lambda d: (d.x(5, 6), d.x(5, 6)), approximate="tanh")
case("silu_backward hardswish_backward hardsigmoid_backward mish_backward", lambda d: (d.x(5, 6), d.x(5, 6)))
case("sigmoid_backward tanh_backward", lambda d: (d.x(5, 6), d.p(5, 6)))
case("leaky_relu_backward", lambda d: (d.x(5, 6), d.x(5, 6), 0.1, False))
case("hardtanh_backward", lambda d: (d.x(5, 6), d.x(5, 6), -1, 1))
case("softplus", lambda d: (d.x(5, 6), 2, 1))
case("softplus_backward", lambda d: (d.x(5, 6), d.x(5, 6), 2, 1))
case("elu", lambda d: (d.x(5, 6), 1.5, 1.1, 0.5))
for reduction in (0, 1, 2):
    case("mse_loss", lambda d, reduction=reduction: (d.x(5, 6), d.x(5, 6), reduction))
# --- comparison
_COMPARED = "lt le gt ge eq ne"
case(" ".join(f"{name}.Tensor" for name in _COMPARED.split()), lambda d: (d.x(5, 6), d.x(6)))
case(" ".join(f"{name}.Tensor" for name in _COMPARED.split()), lambda d: (d.x(5, 6), torch.arange(6)))
case(" ".join(f"{name}.Scalar" for name in _COMPARED.split()), lambda d: (d.x(5, 6), 1))
case(" ".join(f"{name}.Scalar" for name in _COMPARED.split()), lambda d: (d.x(5, 6), 0.5))
case("logical_and logical_or logical_xor", lambda d: (d.x(5, 6), d.mask(6)))
case("logical_not bitwise_not isnan isinf", lambda d: (d.x(5, 6),))
case("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor", lambda d: (d.x(5, 6), d.x(6)))
case("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar", lambda d: (d.x(5, 6), 1))
# --- reduction
case("sum mean prod max min any all argmax argmin", lambda d: (d.x(3, 4),))
case("sum mean max min any all amax amin", lambda d: (d.x(),))
case("logsumexp", lambda d: (d.x(3, 4, 5), [1, -1]))
case("sum.dim_IntList mean.dim", lambda d: (d.x(3, 4, 5), [0, -1]))
case("sum.dim_IntList mean.dim any.dims all.dims", lambda d: (d.x(3, 4, 5), [1], True))
case("sum.dim_IntList mean.dim amax amin", lambda d: (d.x(3, 4, 5), []))
case("sum.dim_IntList", lambda d: (d.x(3, 4, 5), [1]), dtype=torch.float32)
case("amax amin", lambda d: (d.x(3, 4, 5), [0, 2], True))
case("prod.dim_int any.dim all.dim", lambda d: (d.x(3, 4, 5), -2))
case("max.dim min.dim argmax argmin", lambda d: (d.x(3, 4, 5), -2))
case("max.dim min.dim argmax argmin", lambda d: (d.x(3, 4, 5), 1, True))
case(
    "var.correction std.correction var_mean.correction std_mean.correction",
    lambda d: (d.x(3, 4, 5), [0, 2]),
    correction=1,
)
case("var.correction var_mean.correction", lambda d: (d.x(3, 4, 5), None), correction=0, keepdim=True)
for order in (0, 1, 2, float("inf"), float("-inf")):
    case("linalg_vector_norm", lambda d, order=order: (d.x(3, 4, 5), order, [1], True))
case("cumsum", lambda d: (d.x(3, 4), 1))
# --- matrices
case("mm", lambda d: (d.x(3, 4), d.x(4, 5)))
case("bmm", lambda d: (d.x(2, 3, 4), d.x(2, 4, 5)))
case("dot", lambda d: (d.x(4), d.x(4)))
case("mv", lambda d: (d.x(3, 4), d.x(4)))
case("addmm", lambda d: (d.x(5), d.x(3, 4), d.x(4, 5)))
case("addmm", lambda d: (d.x(3, 1), d.x(3, 4), d.x(4, 5)), alpha=2, beta=3)
case("addmm", lambda d: (d.x(5), d.x(3, 4), d.x(4, 5)), beta=0)
case("addmv", lambda d: (d.x(3), d.x(3, 4), d.x(4)), alpha=2)
case("baddbmm", lambda d: (d.x(5), d.x(2, 3, 4), d.x(2, 4, 5)), beta=2)
# --- convolution
_TAIL: tuple[Any, ...] = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
case("convolution", lambda d: (d.x(2, 3, 8, 9), d.x(4, 3, 3, 3), d.x(4), *_TAIL))
case("convolution", lambda d: (d.x(2, 4, 8), d.x(4, 2, 3), None, [2], [2], [2], False, [0], 2))
case(
    "convolution",
    lambda d: (d.x(1, 2, 5, 6, 7), d.x(4, 2, 2, 3, 3), d.x(4), [1, 2, 2], [1] * 3, [1] * 3, False, [0] * 3, 1),
)
case("convolution", lambda d: (d.x(2, 4, 5, 6), d.x(4, 3, 3, 3), d.x(6), [2, 2], [1, 1], [1, 1], True, [1, 1], 2))
case("convolution", lambda d: (d.x(2, 4, 5), d.x(4, 3, 3), None, [2], [0], [2], True, [1], 1))
# --- softmax
case("_softmax _log_softmax", lambda d: (d.x(3, 4, 5), -1, False))
case("_softmax _log_softmax", lambda d: (d.x(3, 4, 5), 1, False))
case("_safe_softmax", lambda d: (torch.where(d.mask(4, 1), d.x(4, 5), torch.tensor(-torch.inf, dtype=d.dtype)), -1))
case("_softmax_backward_data", lambda d: (d.x(3, 4), d.p(3, 4), -1, d.dtype))
case("_log_softmax_backward_data", lambda d: (d.x(3, 4), -d.p(3, 4), 0, d.dtype))
# --- normalisation
case("native_layer_norm", lambda d: (d.x(3, 4, 6), [6], d.x(6), d.x(6), 1e-5))
case("native_layer_norm", lambda d: (d.x(3, 4, 6), [4, 6], None, None, 1e-5))
_STATISTICS = torch.float32


def _stat(d: Data, *shape: int) -> torch.Tensor:
    wide = torch.float64 if d.dtype is torch.float64 else torch.float32
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)).to(wide) + 0.5


_MASK = [True, True, True]
case(
    "native_layer_norm_backward",
    lambda d: (d.x(3, 4, 6), d.x(3, 4, 6), [6], _stat(d, 3, 4, 1), _stat(d, 3, 4, 1), d.x(6), d.x(6), _MASK),
)
case(
    "native_layer_norm_backward",
    lambda d: (d.x(3, 6), d.x(3, 6), [3, 6], _stat(d, 1, 1), _stat(d, 1, 1), None, None, [True, False, False]),
)
case("_native_batch_norm_legit_no_training", lambda d: (d.x(2, 3, 4, 5), d.x(3), d.x(3), d.x(3), d.p(3), 0.1, 1e-5))
case("native_batch_norm", lambda d: (d.x(2, 3, 4, 5), d.x(3), d.x(3), d.x(3), d.p(3), False, 0.1, 1e-5))
case("_native_batch_norm_legit_no_training", lambda d: (d.x(4, 3), None, None, d.x(3), d.p(3), 0.1, 1e-5))
case(
    "_native_batch_norm_legit_functional",
    lambda d: (d.x(2, 3, 4, 5), d.x(3), d.x(3), _stat(d, 3), _stat(d, 3), True, 0.1, 1e-5),
)
case(
    "_native_batch_norm_legit_functional",
    lambda d: (d.x(4, 3), d.x(3), d.x(3), _stat(d, 3), _stat(d, 3), False, 0.1, 1e-5),
)
case("_native_batch_norm_legit.no_stats", lambda d: (d.x(2, 3, 4, 5), d.x(3), d.x(3), True, 0.1, 1e-5))
for _trained in (True, False):
    case(
        "native_batch_norm_backward",
        lambda d, trained=_trained: (
            *(d.x(2, 3, 4), d.x(2, 3, 4), d.x(3)),
            *(_stat(d, 3), _stat(d, 3), _stat(d, 3), _stat(d, 3)),
            *(trained, 1e-5, _MASK),
        ),
    )
case("native_group_norm", lambda d: (d.x(2, 6, 4, 5), d.x(6), d.x(6), 2, 6, 20, 3, 1e-5))
case(
    "native_group_norm_backward",
    lambda d: (
        d.x(2, 6, 4, 5),
        d.x(2, 6, 4, 5),
        _stat(d, 2, 3).to(d.dtype),
        _stat(d, 2, 3).to(d.dtype),
        d.x(6),
        2,
        6,
        20,
        3,
        _MASK,
    ),
)
# --- attention
_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
case(_FLASH, lambda d: (d.x(2, 3, 5, 8), d.x(2, 3, 7, 8), d.x(2, 3, 7, 8)))
case(_FLASH, lambda d: (d.x(2, 3, 5, 8), d.x(2, 3, 5, 8), d.x(2, 3, 5, 8), 0.0, True), scale=0.3)
_MASKED = lambda d: torch.where(d.mask(1, 1, 5, 7), 0.0, -torch.inf).to(d.dtype)  # noqa: E731
case(_FLASH, lambda d: (d.x(2, 3, 5, 8), d.x(2, 3, 7, 8), d.x(2, 3, 7, 8)), attn_mask="masked")


def _attention_gradient(d: Data, causal: bool) -> tuple[Any, ...]:
    query, key, value = d.x(2, 3, 5, 8), d.x(2, 3, 5, 8), d.x(2, 3, 5, 8)
    out, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)
    return d.x(2, 3, 5, 8), query, key, value, out, total, 0.0, causal


case(f"{_FLASH}_backward", lambda d: _attention_gradient(d, False))
case(f"{_FLASH}_backward", lambda d: _attention_gradient(d, True))
# --- shape
case("clone alias detach lift_fresh_copy alias_copy detach_copy", lambda d: (d.x(3, 4),))
for target in ALL:
    case("_to_copy", lambda d: (d.x(3, 4),), dtype=target)
case("copy", lambda d: (d.x(3, 4), d.mask(4)))
case("view reshape _unsafe_view view_copy", lambda d: (d.x(3, 4), [2, -1]))
case("_reshape_alias", lambda d: (d.x(3, 4), [2, 6], [6, 1]))
case("t", lambda d: (d.x(3, 4),))
case("t", lambda d: (d.x(3),))
case("transpose.int", lambda d: (d.x(3, 4, 5), 0, -1))
case("permute", lambda d: (d.x(3, 4, 5), [2, 0, -2]))
case("expand", lambda d: (d.x(3, 1), [2, -1, 4]))
case("unsqueeze", lambda d: (d.x(3, 4), -1))
case("squeeze", lambda d: (d.x(3, 1, 4, 1),))
case("squeeze.dim", lambda d: (d.x(3, 1), -1))
case("squeeze.dim", lambda d: (d.x(3, 2), -1))
case("squeeze.dims", lambda d: (d.x(3, 1, 1), [0, 1]))
case("repeat", lambda d: (d.x(3, 4), [2, 1, 3]))
case("flip", lambda d: (d.x(3, 4), [0, -1]))
case("roll", lambda d: (d.x(3, 4), [1, -2], [0, 1]))
case("roll", lambda d: (d.x(3, 4), [5]))
case("slice.Tensor", lambda d: (d.x(9, 4), 0, 1, -2, 3))
case("slice.Tensor", lambda d: (d.x(9, 4), -1, None, 100))
case("select.int", lambda d: (d.x(3, 4), 1, -2))
case("split.Tensor", lambda d: (d.x(7, 4), 3))
case("split_with_sizes", lambda d: (d.x(7, 4), [2, 5]))
case("unbind.int", lambda d: (d.x(3, 4), -1))
case("cat", lambda d: ([d.x(3, 4), d.x(2, 4)],))
case("cat", lambda d: ([d.x(3, 4), torch.arange(8.0).reshape(2, 4)],))
case("stack", lambda d: ([d.x(3, 4), d.x(3, 4)], -1))
case("constant_pad_nd", lambda d: (d.x(3, 4), [1, 2, 0, -1], 1))
case("slice_backward", lambda d: (d.x(3, 4), [9, 4], 0, 2, 5, 1))
case("select_backward", lambda d: (d.x(4), [3, 4], 0, -1))
case("slice_scatter", lambda d: (d.x(9, 4), d.x(3, 4), 0, 2, 5))
case("select_scatter", lambda d: (d.x(3, 4), d.x(3), 1, -1))
case("tril triu", lambda d: (d.x(2, 4, 5), 1))
case("tril triu", lambda d: (d.x(4, 5), -1))
case("diagonal", lambda d: (d.x(3, 4, 5), 1, 0, 2))
# --- factories: an operand only so that there is an input
case("full_like", lambda d: (d.x(3, 4), 2))
case("zeros_like ones_like", lambda d: (d.x(3, 4),))
case("new_full", lambda d: (d.x(3), [2, 3], 1))
case("new_zeros new_ones", lambda d: (d.x(3), [2, 3]))
case("fill.Scalar", lambda d: (d.x(3, 4), 1))
case("fill.Tensor", lambda d: (d.x(3, 4), torch.tensor(1)))
case("full", lambda d: ([2, 3], 1), dtype="own")
case("zeros ones", lambda d: ([2, 3],), dtype="own")
case("scalar_tensor", lambda d: (1,), dtype="own")
case("arange", lambda d: (7,), dtype="own")
case("arange.start", lambda d: (2, 7), dtype="own")
case("arange.start_step", lambda d: (7, 2, -2), dtype="own")
# --- index
case("embedding", lambda d: (d.x(7, 4), d.index(7, 2, 3)))
case("embedding", lambda d: (d.x(7, 4), d.index(7, 2, 3).int()))
case("embedding_dense_backward", lambda d: (d.x(2, 9, 4), d.index(7, 2, 9), 7, -1, False))
case("embedding_dense_backward", lambda d: (d.x(2, 9, 4), d.index(7, 2, 9), 7, 3, False))
case("index_select", lambda d: (d.x(7, 4), -1, d.index(4, 5)))
case("gather", lambda d: (d.x(7, 4), 0, d.index(7, 5, 3)))
case("scatter.src", lambda d: (d.x(7, 4), 1, torch.stack([torch.randperm(4)[:2] for _ in range(7)]), d.x(7, 3)))
case("scatter.value", lambda d: (d.x(7, 4), 1, d.index(4, 7, 2), 1))
case("scatter_add", lambda d: (d.x(7, 4), 1, d.index(4, 7, 9), d.x(7, 9)))
case("index_add", lambda d: (d.x(7, 4), 0, d.index(7, 9), d.x(9, 4)))
case("index_add", lambda d: (d.x(7, 4), 0, d.index(7, 9), d.x(9, 4)), alpha=2)
_INDEX = "index.Tensor _unsafe_index.Tensor"
case(_INDEX, lambda d: (d.x(5, 6, 7), [None, d.index(6, 3) - 6]))
case(_INDEX, lambda d: (d.x(5, 6, 7), [None, d.index(6, 3, 1), d.index(7, 4)]))
case(_INDEX, lambda d: (d.x(5, 6, 7), [d.index(5, 3), None, d.index(7, 3)]))
case(_INDEX, lambda d: (d.x(5, 6), [d.index(5, 2, 3), d.index(6, 2, 3)]))
_PUT = "index_put _unsafe_index_put"
case(_PUT, lambda d: (d.x(5, 6), [torch.tensor([0, 3]), torch.tensor([1, -1])], d.x(2)))
case(_PUT, lambda d: (d.x(5, 6, 7), [None, torch.tensor([1, 4])], d.x(2, 7)))
case(_PUT, lambda d: (d.x(5, 6, 7), [torch.tensor([1, 4]), None, torch.tensor([0, -2])], d.x(2, 6)))
case(_PUT, lambda d: (d.x(5, 6), [d.index(5, 9)], d.x(9, 6), True))
# --- pooling
_POOL = "max_pool2d_with_indices"
case(_POOL, lambda d: (d.x(2, 3, 9, 8), [3, 3], [2, 2], [1, 1]))
case(_POOL, lambda d: (d.x(2, 3, 9, 8), [2, 2], [2, 2], [0, 0], [1, 1], True))
case(_POOL, lambda d: (d.x(2, 3, 9, 8), [3, 2], [], [0, 0], [2, 1]))


def _pool_gradient(d: Data) -> tuple[Any, ...]:
    image = d.x(2, 3, 9, 8)
    result, indices = torch.ops.aten.max_pool2d_with_indices(image, [3, 3], [2, 2], [1, 1])
    return d.x(*result.shape), image, [3, 3], [2, 2], [1, 1], [1, 1], False, indices


case(f"{_POOL}_backward", _pool_gradient)
case("avg_pool2d", lambda d: (d.x(2, 3, 9, 8), [3, 3], [2, 2], [1, 1]))
case("avg_pool2d", lambda d: (d.x(2, 3, 9, 8), [3, 3], [2, 2], [1, 1], False, False))
case("avg_pool2d_backward", lambda d: (d.x(2, 3, 5, 4), d.x(2, 3, 9, 8), [3, 3], [2, 2], [1, 1], False, True, None))
case("avg_pool2d_backward", lambda d: (d.x(2, 3, 3, 4), d.x(2, 3, 8, 9), [2, 2], [3, 2], [0, 0], False, False, None))
case("_adaptive_avg_pool2d", lambda d: (d.x(2, 3, 9, 8), [1, 1]))
case("_adaptive_avg_pool2d", lambda d: (d.x(2, 3, 9, 8), [4, 5]))
case("_adaptive_avg_pool2d_backward", lambda d: (d.x(2, 3, 4, 5), d.x(2, 3, 9, 8)))
# --- loss
for reduction in (0, 1, 2):
    case("nll_loss_forward", lambda d, r=reduction: (d.x(6, 4), d.index(4, 6), None, r, 2))
    case("nll_loss_forward", lambda d, r=reduction: (d.x(6, 4), d.index(4, 6), d.p(4), r, -100))
case("nll_loss_backward", lambda d: (d.p(), d.x(6, 4), d.index(4, 6), d.p(4), 1, 2, d.p()))
case("nll_loss_backward", lambda d: (d.p(), d.x(6, 4), d.index(4, 6), None, 2, -100, d.p()))
case("nll_loss_backward", lambda d: (d.p(6), d.x(6, 4), d.index(4, 6), None, 0, 2, d.p()))


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _bound(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Callable[..., Any], list[Any]]:
    """The call as a function of its tensors alone, and the tensors."""
    tensors: list[torch.Tensor] = []

    def lift(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            position = len(tensors)
            tensors.append(item)
            return lambda given: given[position]
        if isinstance(item, list):
            parts = [lift(part) for part in item]
            return lambda given: [part(given) for part in parts]
        return lambda given: item

    lifted = [lift(item) for item in arguments]
    named = {key: lift(value) for key, value in keywords.items()}
    operator = _operator(name)

    def function(*given: torch.Tensor) -> Any:
        return operator(*(item(given) for item in lifted), **{key: item(given) for key, item in named.items()})

    return function, tensors


def _runs(name: str) -> list[tuple[int, torch.dtype]]:
    return [(index, dtype) for index in range(len(CASES[name])) for dtype in (*FLOATS, *ALL[3:])]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", sorted(CASES))
def test_entry_agrees_with_eager(workbench, name):
    """A claimed call gives eager's result; at least one type of each entry is claimed."""
    claimed = 0
    for index, dtype in _runs(name):
        make, keywords = CASES[name][index]
        named = {"own": dtype, "masked": _MASKED(Data(dtype))}
        keywords = {key: named.get(value, value) for key, value in keywords.items()}
        try:
            function, tensors = _bound(name, make(Data(dtype)), keywords)
            function(*tensors)
            _, graph = trace_graph(function, tensors)
        except (RuntimeError, TypeError, ValueError):
            continue  # eager itself refuses this element type
        operators = {node.op for node in graph.placed_nodes}
        # Torch 2.15 traces detach as alias.
        assert f"aten.{_full(name)}" in operators or name in ("view", "_unsafe_view", "detach"), operators
        verdicts = [workbench.backend.judge(graph.view(node.name)) for node in graph.placed_nodes]
        if any(isinstance(verdict, Unsupported) for verdict in verdicts):
            continue
        claimed += 1
        workbench.check(function, *tensors)
    assert claimed, f"nothing of {name} is claimed"


def _full(name: str) -> str:
    return name if "." in name else f"{name}.default"


_OF_GPUS = {f"aten._scaled_dot_product_{kind}_attention.default" for kind in ("flash", "efficient", "cudnn")}
"""Kernels that only GPUs have; ``tests/tensorrt`` holds what is written for them against the same formula."""


def test_every_entry_has_a_case():
    assert {f"aten.{_full(name)}" for name in CASES} >= set(TABLE) - _OF_GPUS
