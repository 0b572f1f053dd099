"""What generated kernels call: operators and folds that Triton's language does not have as torch means them.

Place: imported where a kernel is compiled; its functions become part of the kernel.
Invariants: on integers the results hold whichever way ``//`` rounds (Triton truncates, its interpreter floors), and
dividing by zero gives something, not an end. Folds propagate NaN. ``ir.scalar.SCALAR_OPS`` says what all of it means.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# -- launches -----------------------------------------------------------------------------------------------------


@triton.jit
def begin():
    """What a kernel does first: nothing, where the hardware starts it after the one before has ended."""


@triton.jit
def wait_and_let_start():
    """``begin`` where a kernel may start early: wait for what the one before wrote, and let the next one start."""
    gdc_wait()
    gdc_launch_dependents()


# -- integers -----------------------------------------------------------------------------------------------------


@triton.jit
def floor_div_integer(a, b):
    """``floor(a / b)``."""
    b = tl.where(b == 0, 1, b)
    quotient = a // b
    rest = a - quotient * b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def trunc_div_integer(a, b):
    """``a / b`` towards zero."""
    b = tl.where(b == 0, 1, b)
    quotient = a // b
    rest = a - quotient * b
    return tl.where((rest != 0) & ((rest < 0) != (a < 0)), quotient + 1, quotient)


@triton.jit
def remainder_integer(a, b):
    """The rest of ``floor_div_integer``: it has the sign of ``b``."""
    return a - floor_div_integer(a, b) * b


@triton.jit
def fmod_integer(a, b):
    """The rest of ``trunc_div_integer``: it has the sign of ``a``."""
    return a - trunc_div_integer(a, b) * b


@triton.jit
def shift_left(a, b, bits: tl.constexpr):
    """0 where all bits are shifted out."""
    outside = (b < 0) | (b >= bits)
    return tl.where(outside, 0, a << tl.where(outside, 0, b)).to(a.dtype)


@triton.jit
def shift_right(a, b, bits: tl.constexpr):
    """The sign where all bits are shifted out."""
    outside = (b < 0) | (b >= bits)
    return (a >> tl.where(outside, bits - 1, b)).to(a.dtype)


# -- floating numbers ---------------------------------------------------------------------------------------------


@triton.jit
def remainder_floating(a, b):
    """It has the sign of ``b``."""
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


@triton.jit
def floor_div_floating(a, b):
    """As torch divides: exact where the quotient is a whole number."""
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    down = tl.floor(quotient)
    down = tl.where(quotient - down > 0.5, down + 1, down)
    return tl.where(b == 0, a / b, tl.where(quotient == 0, libdevice.copysign(quotient * 0, a / b), down))


@triton.jit
def sign(a):
    """-1, 0 or 1; NaN gives 0, as in eager."""
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


@triton.jit
def rough_normal(x):
    """Share of the standard normal distribution below ``x``, without branches: below 0 a power of two whose exponent
    is a polynomial, above it what that leaves of 1.

    The polynomial is fitted to the logarithm over [0, 6.5] for the least largest error. The result is off by at most
    9e-6 of itself for ``x >= -6.5`` and what the device's power of two adds (2**-22); below -6.5, where eager's float32
    has 0, it goes to 0 as it should.
    """
    a = tl.abs(x)
    power = -1.75777595e-06 * a + 5.99365656e-05
    power = power * a - 9.16362789e-04
    power = power * a + 8.44738473e-03
    power = power * a - 5.38244998e-02
    power = power * a - 4.5861571e-01
    power = power * a - 1.15118016e00
    power = power * a - 1.00000387e00
    tail = tl.exp2(power)
    return tl.where(x < 0, tail, 1.0 - tail)


@triton.jit
def logaddexp(a, b):
    """``log(exp(a) + exp(b))``."""
    high = maximum(a, b)
    low = minimum(a, b)
    infinite = (high == float("inf")) | (high == float("-inf"))
    return tl.where(infinite | (a != a) | (b != b), high, high + libdevice.log1p(tl.exp(low - high)))


# -- random numbers -----------------------------------------------------------------------------------------------


@triton.jit
def drawn(seed, offset, position, threads, vector: tl.constexpr, wide: tl.constexpr):
    """Four words of the stream of an element, and which of them is its own; ``ir.philox`` says how they are found."""
    if wide:
        place, count = position.to(tl.uint64), tl.cast(threads, tl.uint64)
    else:
        place, count = position.to(tl.uint32), tl.cast(threads, tl.uint32)
    if vector == 1:
        thread, turn = place % count, place // count
        block, lane = turn // 4, turn % 4
    else:
        step, inside = place // vector, place % vector
        thread, turn = step % count, step // count
        block, lane = turn * ((vector + 3) // 4) + inside // 4, inside % 4
    counter = (offset >> 2) + block.to(tl.int64)
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    stream = thread.to(tl.uint32)
    first, second, third, fourth = tl.philox(seed, low, high, stream, tl.zeros_like(stream))
    return first, second, third, fourth, lane


@triton.jit
def unit(bits):
    """32 bits as a number in (0, 1]."""
    return bits.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def uniform(seed, offset, position, threads, vector: tl.constexpr, wide: tl.constexpr):
    """The number that torch draws for an element."""
    first, second, third, fourth, lane = drawn(seed, offset, position, threads, vector, wide)
    return unit(tl.where(lane == 0, first, tl.where(lane == 1, second, tl.where(lane == 2, third, fourth))))


@triton.jit
def uniform_of_fours(seed, offset, position, threads, vector: tl.constexpr, wide: tl.constexpr, count: tl.constexpr):
    """The numbers of ``count`` elements, of which every four are neighbours that share a draw; as one row."""
    pairs, _ = tl.split(tl.reshape(position, [count // 4, 2, 2]))
    firsts, _ = tl.split(pairs)
    key, start = tl.reshape(seed, [1]), tl.reshape(offset, [1])
    first, second, third, fourth, _ = drawn(key, start, firsts, threads, vector, wide)
    words = tl.join(tl.join(first, third), tl.join(second, fourth))
    return unit(tl.reshape(words, [count]))


# -- folds --------------------------------------------------------------------------------------------------------


@triton.jit
def add(a, b):
    """Their sum."""
    return a + b


@triton.jit
def multiply(a, b):
    """Their product."""
    return a * b


@triton.jit
def maximum(a, b):
    """The larger; NaN where there is one."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    """The smaller; NaN where there is one."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def later_maximum(a, place, b, other):
    """The larger with its place; of equals the first, and a NaN before all."""
    takes = (b > a) | ((b == a) & (other < place))
    takes = tl.where(a != a, (b != b) & (other < place), takes | (b != b))
    return tl.where(takes, b, a), tl.where(takes, other, place)


@triton.jit
def later_minimum(a, place, b, other):
    """The smaller with its place; of equals the first, and a NaN before all."""
    takes = (b < a) | ((b == a) & (other < place))
    takes = tl.where(a != a, (b != b) & (other < place), takes | (b != b))
    return tl.where(takes, b, a), tl.where(takes, other, place)


@triton.jit
def continue_statistics(mean, squares, value, share):
    """Mean and squared distances of one value more, whose share of all values so far is given (Welford, 1962)."""
    apart = value - mean
    mean = mean + apart * share
    return mean, squares + apart * (value - mean)


@triton.jit
def continue_statistics_inside(mean, squares, value, share, inside):
    """The same where ``inside`` is true; elsewhere nothing changes."""
    apart = tl.where(inside, value - mean, 0.0)
    mean = mean + apart * share
    return mean, squares + apart * tl.where(inside, value - mean, 0.0)


@triton.jit
def statistics_of_lanes(mean, squares, count, axis: tl.constexpr):
    """Mean and squared distances of all lanes along an axis, each of ``count`` values (Chan et al., 1979)."""
    total = tl.sum(mean * count, axis, keep_dims=True) / tl.sum(count, axis, keep_dims=True)
    apart = tl.where(count == 0, 0.0, mean - total)
    distances = tl.sum(squares + apart * apart * count, axis)
    return tl.sum(total, axis), distances
