// pow of floats and of integers.
//
// Place: included by `math.hpp`; over a scalar or a native vector. Method for floats: exp2(b log2 a) in double, log2 by
// an odd polynomial in (m - 1) / (m + 1), whose errors stay below a float's rounding over the whole range; the special
// cases are C's. Integers: repeated squaring; a negative power is 0 except of 1 and -1, as in eager.
#pragma once
#include "exponential.hpp"

namespace mb::raw {

template <class D> MB_INLINE D polynomial_double(D, double last) { return fill<D>(last); }
template <class D, class... More> MB_INLINE D polynomial_double(D x, double first, More... more) {
    return polynomial_double(x, more...) * x + fill<D>(first);
}

MB_INLINE double to_double(i64 value) { return static_cast<double>(value); }
MB_INLINE native_f64 to_double(native_i64 value) {
    // Exact for the exponents it is used for: their bits under those of 1.5 2^52.
    const native_i64 shifted = value + 0x4338000000000000LL;
    return bit_cast<native_f64>(shifted) - fill<native_f64>(0x1.8p52);
}

// log2 of a positive normal double that was a float.
template <class D> MB_INLINE D log2_of_float(D x) {
    const Integer<D> bits = bits_of(x);
    const Integer<D> e = (bits - 0x3fe6a09e667f3bcdLL) >> 52;
    const D m = bit_cast<D>(bits - (e << 52));
    const D one = fill<D>(1.0);
    const D s = (m - one) / (m + one);
    const D tail = polynomial_double(s * s, 0x1.71547652b824fp+1, 0x1.ec709dc5406b8p-1, 0x1.2776c28e49343p-1,
                                     0x1.a61a32fd6e88cp-2, 0x1.47949f0221836p-2, 0x1.21bbb43df8a21p-2);
    return tail * s + to_double(e);
}
template <class D> MB_INLINE D exp2_for_float(D x) {
    x = x < fill<D>(-200.0) ? fill<D>(-200.0) : x;
    x = x > fill<D>(200.0) ? fill<D>(200.0) : x;
    const D shift = fill<D>(0x1.8p52);
    const D shifted = x + shift;
    const D r = x - (shifted - shift);
    const D value = polynomial_double(r, 0x1.ffffffffab120p-1, 0x1.62e42ff119232p-1, 0x1.ebfbe0a5c5b13p-3,
                                      0x1.c6b08aaaec8b4p-5, 0x1.3b29db62300aap-7, 0x1.5d8a73137fca4p-10,
                                      0x1.446ad3a80a4c9p-13, 0x1.fe16926f42f2bp-17);
    return bit_cast<D>(bits_of(value) + (bits_of(shifted) << 52));
}
// a^b for a >= 0; the edges of log2 are set by hand.
template <class D> MB_INLINE D power_of_positive(D a, D b) {
    const D infinity = fill<D>(__builtin_inf());
    D logarithm = log2_of_float(a);
    logarithm = a < infinity ? logarithm : a;
    logarithm = a == D{} ? -infinity : logarithm;
    return exp2_for_float(b * logarithm);
}
MB_INLINE float power_of_magnitude(float a, float b) {
    return static_cast<float>(power_of_positive(static_cast<double>(a), static_cast<double>(b)));
}
MB_INLINE native_f32 power_of_magnitude(native_f32 a, native_f32 b) {
    const Vec<double> x = convert_number<double>(Vec<float>{a}), y = convert_number<double>(Vec<float>{b});
    return convert_number<float>(Vec<double>{power_of_positive(x.low, y.low), power_of_positive(x.high, y.high)}).v;
}

template <class V> static inline V pow_single(V a, V b) {
    using I = Integer<V>;
    const V one = constant<V>(1.0f), infinity = constant<V>(__builtin_inff());
    const V base = magnitude(a), power = magnitude(b);
    V result = power_of_magnitude(base, b);
    const auto whole = trunc(b) == b;
    // From 2^24 on every float is even; half of an odd number is not whole.
    const V half = b * constant<V>(0.5f);
    const auto odd = whole & (power < constant<V>(0x1p24f)) & (trunc(half) != half);
    const auto nowhere = (a < V{}) & (base < infinity) & (trunc(b) != b);
    result = nowhere ? constant<V>(__builtin_nanf("")) : result;
    result = bit_cast<V>(bits_of(result) | (odd ? sign_bit(a) : I{}));
    // 1 to any power, anything to the power of 0, and -1 to an infinite power.
    result = ((base == one) & (power == infinity)) ? one : result;
    return ((a == one) | (b == V{})) ? one : result;
}

template <class V> MB_INLINE bool any_left(V left) {
    if constexpr (is_vector<V>) {
        Element<V> any = 0;
        for (int lane = 0; lane < static_cast<int>(sizeof(V) / sizeof(Element<V>)); ++lane) any |= left[lane];
        return any != 0;
    } else {
        return left != 0;
    }
}
template <class V> static inline V pow_integer(V a, V b) {
    const V one = fill<V>(Element<V>(1));
    const V negative = a == one ? one : (a == -one ? ((b & 1) != V{} ? -one : one) : V{});
    V result = one, square = a, left = b < V{} ? V{} : b;
    while (any_left(left)) {
        result = (left & 1) != V{} ? result * square : result;
        square = square * square;
        left = left >> 1;
    }
    return b < V{} ? negative : result;
}

}  // namespace mb::raw
