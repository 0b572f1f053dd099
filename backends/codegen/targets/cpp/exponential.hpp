// exp, exp2, expm1, sinh, cosh, tanh, sigmoid of floats.
//
// Place: included by `math.hpp`; over a scalar float or a native vector of them. Method: x = n ln 2 + r with |r| <=
// ln 2 / 2 and ln 2 in two parts (Cody and Waite), a polynomial for exp(r), fitted for the least maximal relative error
// (Remez, coefficients rounded one after the other), and multiplication by 2^n.
// Invariants: denormal results are rounded once or twice, never flushed; NaN stays NaN.
#pragma once
#include "arithmetic.hpp"

namespace mb::raw {

// c0 + x (c1 + x (c2 + ...)).
template <class V> MB_INLINE V polynomial(V, float last) { return fill<V>(last); }
template <class V, class... More> MB_INLINE V polynomial(V x, float first, More... more) {
    return polynomial(x, more...) * x + fill<V>(first);
}

template <class V> MB_INLINE V constant(float value) { return fill<V>(value); }

constexpr float rounding_shift = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits

template <class V> MB_INLINE V nearest_integer(V x) {
    const V shifted = x + constant<V>(rounding_shift);
    return shifted - constant<V>(rounding_shift);
}
template <class V> MB_INLINE Integer<V> integer_bits(V whole) {
    return bits_of(whole + constant<V>(rounding_shift)) - 0x4b400000;
}

// 2^n for whole n from -126 to 127.
template <class V> MB_INLINE V power_of_two(Integer<V> n) { return bit_cast<V>((n + 127) << 23); }

// value 2^n for whole n from -252 to 254; denormal results come out rounded.
template <class V> MB_INLINE V scale(V value, V n) {
#if defined(__AVX512F__) && MB_VECTOR_BYTES == 64
    if constexpr (same<V, native_f32>) return __builtin_ia32_scalefps512_mask(value, n, value, -1, 4);
#endif
    const Integer<V> whole = integer_bits(n);
    const Integer<V> first = whole >> 1;
    return value * power_of_two<V>(first) * power_of_two<V>(whole - first);
}

template <class V> MB_INLINE V clamp(V x, float low, float high) {
#if defined(MB_WIDE_BUILTINS)
    // Of a NaN and a number the instructions give what comes second.
    if constexpr (same<V, native_f32>) {
        const V above = __builtin_ia32_maxps512_mask(constant<V>(low), x, x, -1, 4);
        return __builtin_ia32_minps512_mask(constant<V>(high), above, above, -1, 4);
    }
#endif
    // NaN passes: comparisons with it are false.
    x = x < constant<V>(low) ? constant<V>(low) : x;
    return x > constant<V>(high) ? constant<V>(high) : x;
}

// r with x = n ln 2 + r; n ln2_high is exact.
template <class V> MB_INLINE V reduce_by_ln2(V x, V n) {
    return (x - n * constant<V>(0x1.62e4p-1f)) - n * constant<V>(0x1.7f7d1cp-20f);
}

// exp(r) - 1 for |r| <= ln 2 / 2, to be added to 1.
template <class V> MB_INLINE V exp_fraction(V r) {
    const V tail = polynomial(r, 0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558bp-5f, 0x1.12398ep-7f, 0x1.6a4d6p-10f);
    return tail * (r * r) + r;
}

template <class V> MB_INLINE V exp_single(V x) {
    x = clamp(x, -104.0f, 91.0f);
    const V n = nearest_integer(x * constant<V>(0x1.715476p+0f));
    return scale(exp_fraction(reduce_by_ln2(x, n)) + constant<V>(1.0f), n);
}
// exp(x) / 2.
template <class V> MB_INLINE V half_exp(V x) {
    x = clamp(x, -104.0f, 91.0f);
    const V n = nearest_integer(x * constant<V>(0x1.715476p+0f));
    return scale(exp_fraction(reduce_by_ln2(x, n)) + constant<V>(1.0f), n - constant<V>(1.0f));
}

// factor exp(high + low) for a small correction; the product is rounded before it may become denormal.
template <class V> MB_INLINE V exp_of_sum_times(V high, V low, V factor) {
    high = clamp(high, -110.0f, 91.0f);
    const V n = nearest_integer(high * constant<V>(0x1.715476p+0f));
    const V r = reduce_by_ln2(high, n) + low;
    return scale((exp_fraction(r) + constant<V>(1.0f)) * factor, n);
}

template <class V> MB_INLINE V exp2_single(V x) {
    x = clamp(x, -151.0f, 129.0f);
    const V n = nearest_integer(x);
    const V r = x - n;
    const V fraction = polynomial(r, 0x1.62e43p-1f, 0x1.ebfbdcp-3f, 0x1.c6af7ap-5f, 0x1.3b2ddap-7f, 0x1.5f0976p-10f,
                                  0x1.417284p-13f);
    return scale(fraction * r + constant<V>(1.0f), n);
}

// exp(x) - 1 from 2^(n-1) (exp(r) - 1) + (2^(n-1) - 1/2), for |x| < 90.
template <class V> MB_INLINE V expm1_inside(V x) {
    const V n = nearest_integer(x * constant<V>(0x1.715476p+0f));
    const V r = reduce_by_ln2(x, n);
    const V tail = polynomial(r, 0x1p-1f, 0x1.555554p-3f, 0x1.5554f8p-5f, 0x1.1112d8p-7f, 0x1.6d3a4ap-10f,
                              0x1.9e738p-13f);
    const V fraction = tail * (r * r) + r;
    const V half_power = power_of_two<V>(integer_bits(n) - 1);
    const V half = fraction * half_power + (half_power - constant<V>(0.5f));
    return half + half;
}
template <class V> MB_INLINE V expm1_single(V x) {
    const V result = expm1_inside(clamp(x, -40.0f, 89.0f));
    return magnitude(x) < constant<V>(0x1p-26f) ? x : result;
}

template <class V> MB_INLINE V tanh_single(V x) {
    const V twice = magnitude(x) + magnitude(x);
    const V grown = expm1_inside(twice > constant<V>(19.0f) ? constant<V>(19.0f) : twice);
    return copysign(grown / (grown + constant<V>(2.0f)), x);
}

template <class V> MB_INLINE V sigmoid_single(V x) {
    const V one = constant<V>(1.0f);
    return one / (one + exp_single(-x));
}

template <class V> static inline V sinh_single(V x) {
    const V a = magnitude(x);
    const V near = expm1_inside(a > constant<V>(2.0f) ? constant<V>(2.0f) : a);
    const V small = constant<V>(0.5f) * (near + near / (near + constant<V>(1.0f)));
    const V half = half_exp(a);
    const V large = half - constant<V>(0.25f) / half;
    return copysign(a < constant<V>(1.0f) ? small : large, x);
}
template <class V> static inline V cosh_single(V x) {
    const V half = half_exp(magnitude(x));
    return half + constant<V>(0.25f) / half;
}

}  // namespace mb::raw
