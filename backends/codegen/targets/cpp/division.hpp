// Division of integers, and what depends on the quotient of floats: floor_div, trunc_div, remainder, fmod.
//
// Place: included by `arithmetic.hpp`. Results are eager's for every pair of values, zeros and infinities included; an
// integer divided by zero gives zero (eager raises, a kernel cannot).
#pragma once
#include "convert.hpp"

extern "C" float fmodf(float, float) noexcept(true);
extern "C" double fmod(double, double) noexcept(true);

namespace mb::raw {

// ---- integers -----------------------------------------------------------------------------------------------------

MB_INLINE i64 quotient(i64 a, i64 b) {
    if (b == 0) return 0;
    if (b == -1) return -a;
    return a / b;
}
MB_INLINE i32 quotient(i32 a, i32 b) {
    if (b == 0) return 0;
    if (b == -1) return -a;
    return a / b;
}

template <class V> MB_INLINE V trunc_div_integer(V a, V b) {
    if constexpr (same<V, native_i32>) {
        // Every quotient of 32-bit integers is exact enough in double; 2^31 wraps as it does in the instruction.
        const Vec<double> x = convert_number<double>(Vec<i32>{a});
        const Vec<double> y = convert_number<double>(Vec<i32>{b});
        const V result = convert_number<i32>(Vec<double>{x.low / y.low, x.high / y.high}).v;
        return b == V{} ? V{} : result;
    } else {
        return each_lane(a, b, [](Element<V> x, Element<V> y) { return quotient(x, y); });
    }
}
template <class V> MB_INLINE V remainder_integer(V a, V b) {
    const V rest = a - trunc_div_integer(a, b) * b;
    return ((rest != V{}) & ((rest ^ b) < V{})) ? rest + b : rest;
}
template <class V> MB_INLINE V floor_div_integer(V a, V b) {
    const V result = trunc_div_integer(a, b);
    const V rest = a - result * b;
    return ((b != V{}) & (rest != V{}) & ((rest ^ b) < V{})) ? result - 1 : result;
}

// ---- floats -------------------------------------------------------------------------------------------------------

MB_INLINE float rest(float a, float b) { return ::fmodf(a, b); }
MB_INLINE double rest(double a, double b) { return ::fmod(a, b); }

static __attribute__((noinline)) native_f32 fmod_by_lane(native_f32 a, native_f32 b) {
    return each_lane(a, b, [](float x, float y) { return ::fmodf(x, y); });
}

// a - b trunc(a / b) in double, exact while the quotient has fewer than 26 bits: then it cannot be rounded up to the
// next integer, and its product with b fits a double.
MB_INLINE half_f32 fmod_half(half_f32 a, half_f32 b, native_i64& exact) {
    const native_f64 x = __builtin_convertvector(a, native_f64);
    const native_f64 y = __builtin_convertvector(b, native_f64);
    const native_f64 whole = trunc(x / y);
    exact = exact & (magnitude(whole) < fill<native_f64>(0x1p26));
    // Nothing is taken off where the quotient is 0: its product with an infinite divisor would be NaN.
    return __builtin_convertvector(whole == native_f64{} ? x : x - whole * y, half_f32);
}

template <class V> MB_INLINE V fmod_floating(V a, V b) {
    if constexpr (same<V, native_f32>) {
        native_i64 exact = ~native_i64{};
        const half_f32 low = fmod_half(lower_half<half_f32>(a), lower_half<half_f32>(b), exact);
        const half_f32 high = fmod_half(upper_half<half_f32>(a), upper_half<half_f32>(b), exact);
        i64 all = -1;
        for (int lane = 0; lane < half_lanes; ++lane) all &= exact[lane];
        if (!all) return fmod_by_lane(a, b);
        // The sign is the dividend's, that of a zero included.
        return copysign(join<native_f32>(low, high), a);
    } else {
        return each_lane(a, b, [](Element<V> x, Element<V> y) { return rest(x, y); });
    }
}

template <class V> MB_INLINE V remainder_floating(V a, V b) {
    const V mod = fmod_floating(a, b);
    const auto other_side = (b < V{}) != (mod < V{});
    return ((mod != V{}) & other_side) ? mod + b : mod;
}

template <class V> MB_INLINE V floor_div_floating(V a, V b) {
    const V one = fill<V>(Element<V>(1));
    const V plain = a / b;
    const V mod = fmod_floating(a, b);
    const auto other_side = (b < V{}) != (mod < V{});
    V quotient = (a - mod) / b;
    quotient = ((mod != V{}) & other_side) ? quotient - one : quotient;
    V whole = floor(quotient);
    whole = quotient - whole > fill<V>(Element<V>(0.5)) ? whole + one : whole;
    whole = quotient == V{} ? copysign(V{}, plain) : whole;
    return b == V{} ? plain : whole;
}

template <class V> MB_INLINE V divide(V a, V b) {
    if constexpr (is_floating<V>) {
        return a / b;
    } else {
        return trunc_div_integer(a, b);
    }
}
template <class V> MB_INLINE V trunc_div(V a, V b) {
    if constexpr (is_floating<V>) {
        return trunc(a / b);
    } else {
        return trunc_div_integer(a, b);
    }
}
template <class V> MB_INLINE V floor_div(V a, V b) {
    if constexpr (is_floating<V>) {
        return floor_div_floating(a, b);
    } else {
        return floor_div_integer(a, b);
    }
}
template <class V> MB_INLINE V remainder(V a, V b) {
    if constexpr (is_floating<V>) {
        return remainder_floating(a, b);
    } else {
        return remainder_integer(a, b);
    }
}
template <class V> MB_INLINE V fmod(V a, V b) {
    if constexpr (is_floating<V>) {
        return fmod_floating(a, b);
    } else {
        return a - trunc_div_integer(a, b) * b;
    }
}

}  // namespace mb::raw
