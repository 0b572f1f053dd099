// log, log2, log10, log1p, asinh, acosh, atanh of floats.
//
// Place: included by `math.hpp`; over a scalar float or a native vector of them. Method: x = 2^e (1 + f) with 1 + f
// between sqrt(1/2) and sqrt(2), and a polynomial in f, fitted for the least maximal relative error (Remez). log1p
// finds f = x 2^-e + (2^-e - 1) without rounding 1 + x.
// Invariants: 0 gives -inf, negative numbers NaN, denormals are numbers like any other.
#pragma once
#include "exponential.hpp"

namespace mb::raw {

MB_INLINE float to_float(i32 value) { return static_cast<float>(value); }
MB_INLINE native_f32 to_float(native_i32 value) { return __builtin_convertvector(value, native_f32); }

// e for positive x: below sqrt(1/2) 2^e the exponent is one less.
template <class V> MB_INLINE Integer<V> split_exponent(V x) { return (bits_of(x) - 0x3f3504f3) >> 23; }

template <class V> struct Split {
    V fraction, exponent;
};
template <class V> MB_INLINE Split<V> split(V x) {
    const auto denormal = x < constant<V>(0x1p-126f);
    const V normal = denormal ? x * constant<V>(0x1p23f) : x;
    const Integer<V> e = split_exponent(normal);
    const V fraction = bit_cast<V>(bits_of(normal) - (e << 23)) - constant<V>(1.0f);
    const V exponent = to_float(e);
    return {fraction, denormal ? exponent - constant<V>(23.0f) : exponent};
}

// What is left of the number line: NaN and infinity, zero, negative numbers.
template <class V> MB_INLINE V log_at_edges(V x, V result) {
    const V infinity = constant<V>(__builtin_inff());
    result = x < infinity ? result : x;
    result = x == V{} ? -infinity : result;
    return x < V{} ? constant<V>(__builtin_nanf("")) : result;
}

// log(1 + f) + e ln 2.
template <class V> MB_INLINE V log_of_parts(V f, V e) {
    const V tail = polynomial(f, 0x1.555548p-2f, -0x1.000006p-2f, 0x1.99a47ap-3f, -0x1.555c4cp-3f, 0x1.233b2ap-3f,
                              -0x1.fc2698p-4f, 0x1.e6c66ap-4f, -0x1.de145ep-4f, 0x1.147a66p-4f);
    const V square = f * f;
    const V small = (tail * f - constant<V>(0.5f)) * square + e * constant<V>(0x1.7f7d1cp-20f);
    return (small + f) + e * constant<V>(0x1.62e4p-1f);
}

template <class V> MB_INLINE V log_single(V x) {
    const Split<V> parts = split(x);
    return log_at_edges(x, log_of_parts(parts.fraction, parts.exponent));
}
template <class V> MB_INLINE V log2_single(V x) {
    const Split<V> parts = split(x);
    const V f = parts.fraction;
    const V tail = polynomial(f, 0x1.c551dap-2f, -0x1.715476p-1f, 0x1.ec7026p-2f, -0x1.7156dep-2f, 0x1.278b14p-2f,
                              -0x1.eb657ap-3f, 0x1.a2293ep-3f, -0x1.81cdf8p-3f, 0x1.7e9b3cp-3f, -0x1.db6742p-4f);
    return log_at_edges(x, (tail * f + f) + parts.exponent);
}
template <class V> MB_INLINE V log10_single(V x) {
    const Split<V> parts = split(x);
    const V f = parts.fraction, e = parts.exponent;
    const V tail = polynomial(f, -0x1.5bc0a8p-27f, -0x1.bcb7aap-3f, 0x1.287a72p-3f, -0x1.bcbf52p-4f, 0x1.63cf6p-4f,
                              -0x1.2769acp-4f, 0x1.f87552p-5f, -0x1.d7c47p-5f, 0x1.cc05eap-5f, -0x1.0eca32p-5f);
    const V small = tail * f + e * constant<V>(0x1.3509f8p-18f);
    return log_at_edges(x, (small + f * constant<V>(0x1.bcb7b2p-2f)) + e * constant<V>(0x1.344p-2f));
}

template <class V> static inline V log1p_single(V x) {
    const V one = constant<V>(1.0f);
    // Beyond 2^40 the 1 is nothing, and 2^-e would run out of exponents.
    const auto huge = x > constant<V>(0x1p40f);
    const V sum = x + one;
    const Integer<V> e = split_exponent(sum);
    const V shrink = power_of_two<V>(huge ? Integer<V>{} : -e);
    const V scaled = bit_cast<V>(bits_of(sum) - (e << 23)) - one;
    const V f = huge ? scaled : x * shrink + (shrink - one);
    const V result = log_at_edges(sum, log_of_parts(f, to_float(e)));
    return x == V{} ? x : result;
}

template <class V> static inline V asinh_single(V x) {
    const V a = magnitude(x), one = constant<V>(1.0f);
    const auto huge = a > constant<V>(0x1p30f);
    const V square = a * a;
    const V grown = a + square / (one + sqrt(square + one));
    const V result = log1p_single(huge ? a : grown);
    return copysign(huge ? result + constant<V>(0x1.62e43p-1f) : result, x);
}
template <class V> static inline V acosh_single(V x) {
    const V t = x - constant<V>(1.0f);
    const auto huge = x > constant<V>(0x1p30f);
    const V grown = t + sqrt(t * (t + constant<V>(2.0f)));
    const V result = log1p_single(huge ? x : grown);
    // Below 1 there is no root, also where the product above is positive.
    const V answer = huge ? result + constant<V>(0x1.62e43p-1f) : result;
    return t < V{} ? constant<V>(__builtin_nanf("")) : answer;
}
template <class V> static inline V atanh_single(V x) {
    const V a = magnitude(x);
    const V grown = (a + a) / (constant<V>(1.0f) - a);
    return copysign(constant<V>(0.5f) * log1p_single(grown), x);
}

}  // namespace mb::raw
