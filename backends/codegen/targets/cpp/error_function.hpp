// erf and erfc of floats.
//
// Place: included by `math.hpp`; over a scalar float or a native vector of them. Method: near zero an odd polynomial;
// beyond, erf is 1 - exp(-Q(x)), and erfc is exp(-x^2) P(u) / (1 + 2 x) with u = (x - 2) / (x + 2), where x^2 is kept in two
// parts.
// Polynomials are fitted for the least maximal relative error of the result.
#pragma once
#include "exponential.hpp"

namespace mb::raw {

// erf for |x| <= 1.
template <class V> MB_INLINE V erf_near_zero(V x) {
    const V square = x * x;
    // x itself is exact, so that only the last addition rounds.
    return x * polynomial(square, 0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2ce6p-4f, -0x1.b7f71ap-6f, 0x1.53f224p-8f,
                          -0x1.a3515ep-11f, 0x1.4771fep-14f) + x;
}

template <class V> MB_INLINE V erf_single(V x) {
    const V a = magnitude(x);
    const V inside = a > constant<V>(4.0f) ? constant<V>(4.0f) : a;
    const V power = polynomial(inside, 0x1.80b5d4p-13f, -0x1.212aa2p+0f, -0x1.443b06p-1f, -0x1.bbe47ap-4f, 0x1.9c875ep-6f,
                               -0x1.12d3cep-8f, 0x1.cc6c12p-12f, -0x1.68a212p-16f);
    // The exponential lies between 0.16 and 1e-8: no edge of the number range is near.
    const V n = nearest_integer(power * constant<V>(0x1.715476p+0f));
    const V r = reduce_by_ln2(power, n);
    const V far = constant<V>(1.0f) - (exp_fraction(r) + constant<V>(1.0f)) * power_of_two<V>(integer_bits(n));
    return copysign(a < constant<V>(1.0f) ? erf_near_zero(a) : far, x);
}

template <class V> static inline V erfc_single(V x) {
    const V one = constant<V>(1.0f);
    const V a = magnitude(x);
    const V inside = a > constant<V>(10.25f) ? constant<V>(10.25f) : a;
    const V u = (inside - constant<V>(2.0f)) / (inside + constant<V>(2.0f));
    const V shape = polynomial(u, 0x1.46e80ep+0f, -0x1.7bf5eap-4f, -0x1.5407bep-3f, 0x1.4ff95ep-3f, -0x1.bc2194p-5f,
                               -0x1.068beep-7f, 0x1.1c2c8ep-7f, 0x1.3068ccp-10f, -0x1.4f8612p-10f, -0x1.eeefbap-13f);
    const V ratio = shape / (one + (inside + inside));
    // The upper half of the bits squares exactly; the rest is (x - upper)(x + upper).
    const V upper = bit_cast<V>(bits_of(inside) & ~0xfff);
    const V square_rest = (inside - upper) * (inside + upper);
    const V tail = exp_of_sum_times(-(upper * upper), -square_rest, ratio);
    const V far = x < V{} ? constant<V>(2.0f) - tail : tail;
    return a < constant<V>(0.5f) ? one - erf_near_zero(x) : far;
}

}  // namespace mb::raw
