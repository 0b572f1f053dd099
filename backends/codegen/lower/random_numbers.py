"""Rules of ops that draw from torch's random stream: dropout, uniform numbers and Bernoulli trials on NVIDIA GPUs.

Place: registered by ``lower.table``.
A number is a function of the generator's state and of the element's place in memory (``ir.philox``), so that what draws
fuses with its neighbours, and a value that is computed twice is the same twice. The state comes in as two tensors; how
far the region moves it on is ``StageGraph.draws``.
Invariants: every number is the one that eager's kernel draws for this element, in whatever order kernels run; the
generator moves on by as much.
Non-goals: normal numbers (their last bits are the vendor's); probabilities as tensors; generators of one's own;
processors (their kernels draw in another way).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch

from mixbackend.backends.codegen.ir.indices import FloorDiv, flatten
from mixbackend.backends.codegen.ir.scalar import Constant, Expr, IndexValue, Load, apply
from mixbackend.backends.codegen.lower.formula import equal, where
from mixbackend.backends.codegen.lower.lowering import Lowering
from mixbackend.backends.codegen.lower.promotion import convert, rounded_constant
from mixbackend.backends.codegen.lower.rules import RefusedError, rule
from mixbackend.backends.codegen.lower.tensor import Index, Tensor

Draw = Callable[[Index], Expr]

_BLOCK = 256
"""Threads of a block of torch's kernels."""
_AT_ONCE = 4
"""Numbers that a stream gives at a time; offsets count them."""
_VECTOR_BYTES = 16
"""That a thread of torch's kernel for dropout loads at once at most."""
_LARGEST = 2**31 - 1
"""Bytes, and elements, up to which torch's kernels take a tensor as a whole."""
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def _draw(lowering: Lowering, vector: int) -> Draw:
    """The number of every element of the op's first output, from the stream where it is now."""
    threads_at_most = _check_target(lowering)
    sizes = lowering.output_sizes
    count = sympy.Mul(*sizes)
    blocks = sympy.Min(FloorDiv(count + _BLOCK - 1, sympy.Integer(_BLOCK)), threads_at_most // _BLOCK)
    threads = _BLOCK * blocks
    before = lowering.draws
    lowering.draws = before + _AT_ONCE * (FloorDiv(count - 1, _AT_ONCE * threads) + 1)
    seed, offset = (Load(torch.int64, item.name, (sympy.Integer(0),)) for item in lowering.random_state)
    start = offset + IndexValue(torch.int64, before)

    def at(index: Index) -> Expr:
        place = IndexValue(torch.int64, flatten(index, sizes))
        arguments = (seed, start, place, IndexValue(torch.int64, threads), Constant(torch.int64, vector))
        return apply("uniform", *arguments, dtype=torch.float32)

    return at


def _check_target(lowering: Lowering) -> int:
    """How many threads draw at most."""
    if lowering.drawing_threads is None:
        raise RefusedError("random", "no target draws what torch draws on this device")
    return lowering.drawing_threads


def _check_output(lowering: Lowering, generator: Any = None) -> None:
    """Refuse what eager draws in another way than rules here know."""
    meta = lowering.output
    if generator is not None:
        raise RefusedError("random", "a generator of its own")
    if meta.dtype not in _TYPES:
        raise RefusedError("dtype", f"random numbers of {meta.dtype}")
    if not meta.contiguous():
        raise RefusedError("layout", f"{meta} is not row-major: numbers are drawn in the order of memory")
    if any(size == 0 for size in lowering.output_sizes):
        raise RefusedError("argument", "random numbers for nothing")


def _check_one_kernel(lowering: Lowering) -> None:
    """Refuse tensors that torch fills with several kernels, each with an offset of its own."""
    size = sympy.Mul(*lowering.output_sizes) * lowering.output_dtype.itemsize
    if not size.is_Integer:
        raise RefusedError("dynamic-shape", f"whether {size} bytes are drawn by one kernel depends on sizes")
    if int(size) > _LARGEST:
        raise RefusedError("random", f"{size} bytes are drawn by several kernels")


# -- dropout ------------------------------------------------------------------------------------------------------


@rule("aten.native_dropout.default")
def native_dropout(lowering: Lowering, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """What is kept, scaled, and the mask of what is kept."""
    if train is False:
        return _copy(lowering, input), lowering.lazy(input.sizes, torch.bool, lambda index: Constant(torch.bool, True))
    _check_target(lowering)
    if not isinstance(p, (int, float)) or not 0.0 <= p <= 1.0:
        raise RefusedError("argument", f"dropout with the probability {p}")
    if p == 1:
        zero = rounded_constant(0, input.dtype)
        nothing = lowering.lazy(input.sizes, input.dtype, lambda index: zero)
        return nothing, lowering.lazy(input.sizes, torch.bool, lambda index: Constant(torch.bool, False))
    _check_output(lowering)
    draw = _draw(lowering, _vector(lowering, input))
    kept = _single(1.0 - p)
    scale = _single(1.0 / kept)
    mask = lowering.map(input.sizes, torch.bool, lambda index: draw(index) < kept)

    def value(index: Index) -> Expr:
        # Infinities that are dropped become NaN, as in eager.
        factor = apply("to_dtype", mask.at(index), dtype=torch.float32)
        return input.at(index) * factor * scale

    return lowering.map(input.sizes, input.dtype, value), mask


def _copy(lowering: Lowering, tensor: Tensor) -> Tensor:
    return lowering.map(tensor.sizes, tensor.dtype, tensor.at)


def _single(value: float) -> float:
    """The nearest number of float32."""
    return float(torch.tensor(value, dtype=torch.float32))


def _vector(lowering: Lowering, tensor: Tensor) -> int:
    """Elements that a thread of eager's kernel takes at once."""
    assert lowering.view is not None
    (meta,) = lowering.view.input_tensors
    if not meta.contiguous():
        raise RefusedError("layout", f"dropout of {meta}, which is not row-major")
    if tensor.strided is not None and tensor.strided.offset != 0:
        raise RefusedError("layout", "dropout of a part of a tensor: where its memory begins decides what is drawn")
    count = sympy.expand(sympy.Mul(*tensor.sizes))
    if count.is_Integer and int(count) > _LARGEST:
        raise RefusedError("random", f"{count} elements")
    vector = _VECTOR_BYTES // tensor.dtype.itemsize
    if count.is_Integer:
        while int(count) % vector:
            vector //= 2
        return vector
    if any(int(term.as_coeff_Mul()[0]) % vector for term in sympy.Add.make_args(count)):
        raise RefusedError("dynamic-shape", f"whether {vector} divides {count} decides what is drawn")
    return vector


# -- numbers ------------------------------------------------------------------------------------------------------


@rule("aten.rand.default", "aten.rand_like.default")
def rand(lowering: Lowering, generator: Any = None, **options: Any) -> Tensor:
    """Uniform numbers from 0 to 1, 1 excluded."""
    _check_output(lowering, generator)
    _check_one_kernel(lowering)
    draw, dtype = _draw(lowering, 1), lowering.output_dtype

    def value(index: Index) -> Expr:
        # The stream has 1 and not 0; eager turns the one into the other after rounding.
        number = convert(draw(index), torch.float32, dtype)
        return where(equal(number, 1), 0, number)

    return lowering.map(lowering.output_sizes, dtype, value)


@rule("aten.bernoulli.p")
def bernoulli(lowering: Lowering, self: Tensor, p: float, generator: Any = None) -> Tensor:
    """1 with a probability, else 0."""
    _check_output(lowering, generator)
    _check_one_kernel(lowering)
    if not isinstance(p, (int, float)):
        raise RefusedError("argument", f"trials with the probability {p}, which only the run knows")
    draw, dtype, limit = _draw(lowering, 1), lowering.output_dtype, _single(p)
    one = rounded_constant(1, dtype)
    return lowering.map(lowering.output_sizes, dtype, lambda index: where(draw(index) < limit, one, 0))
