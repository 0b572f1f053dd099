// sin, cos, tan, asin, acos, atan, atan2 of floats.
//
// Place: included by `math.hpp`; over a scalar float or a native vector of them. Method: the argument is reduced by
// multiples of pi/2 in double, with pi/2 in two parts of which the first times the multiple is exact (Cody and Waite);
// arguments from 2^20 on go to the C library, lane by lane. Polynomials have the least maximal relative error.
#pragma once
#include "exponential.hpp"

extern "C" float sinf(float) noexcept(true);
extern "C" float cosf(float) noexcept(true);
extern "C" float tanf(float) noexcept(true);

namespace mb::raw {

MB_INLINE bool any_lane(bool condition) { return condition; }
MB_INLINE bool any_lane(native_i32 condition) {
    i32 any = 0;
    for (int lane = 0; lane < lanes; ++lane) any |= condition[lane];
    return any != 0;
}

// x - n pi/2 for a double or a vector of them; n is added to the bits of `shift`.
template <class D> MB_INLINE D reduce_quarter(D x, Integer<D>& turns) {
    const D shift = fill<D>(0x1.8p52);
    const D shifted = x * fill<D>(0x1.45f306dc9c883p-1) + shift;
    const D n = shifted - shift;
    turns = bits_of(shifted);
    return (x - n * fill<D>(0x1.921fb544p+0)) - n * fill<D>(0x1.0b4611a626331p-34);
}
MB_INLINE float reduce_turns(float x, i32& turns) {
    i64 wide;
    const double r = reduce_quarter(static_cast<double>(x), wide);
    turns = static_cast<i32>(wide);
    return static_cast<float>(r);
}
MB_INLINE native_f32 reduce_turns(native_f32 x, native_i32& turns) {
    const Vec<double> wide = convert_number<double>(Vec<float>{x});
    Vec<i64> n;
    const native_f64 low = reduce_quarter(wide.low, n.low);
    const native_f64 high = reduce_quarter(wide.high, n.high);
    turns = convert_number<i32>(n).v;
    return convert_number<float>(Vec<double>{low, high}).v;
}

template <class V> MB_INLINE V sine_near_zero(V r, V square) {
    const V tail = polynomial(square, -0x1.555556p-3f, 0x1.111174p-7f, -0x1.a05960p-13f, 0x1.7c33b0p-19f);
    return tail * square * r + r;
}
template <class V> MB_INLINE V cosine_near_zero(V square) {
    const V tail = polynomial(square, 0x1.55554ap-5f, -0x1.6c0c2ap-10f, 0x1.99e904p-16f);
    return tail * (square * square) + (constant<V>(1.0f) - constant<V>(0.5f) * square);
}

// sin for offset 0, cos for offset 1.
template <class V> MB_INLINE V sine_of_turns(V x, i32 offset) {
    Integer<V> turns;
    const V r = reduce_turns(x, turns);
    turns = turns + offset;
    const V square = r * r;
    const V value = (turns & 1) != Integer<V>{} ? cosine_near_zero(square) : sine_near_zero(r, square);
    return bit_cast<V>(bits_of(value) ^ ((turns & 2) << 30));
}

constexpr float reducible = 0x1p20f;
template <class V> static inline V sin_single(V x) {
    if (__builtin_expect(any_lane(magnitude(x) >= constant<V>(reducible)), false)) {
        return each_lane(x, [](float lane) { return ::sinf(lane); });
    }
    // Zero keeps its sign.
    return x == V{} ? x : sine_of_turns(x, 0);
}
template <class V> static inline V cos_single(V x) {
    if (__builtin_expect(any_lane(magnitude(x) >= constant<V>(reducible)), false)) {
        return each_lane(x, [](float lane) { return ::cosf(lane); });
    }
    return sine_of_turns(x, 1);
}
template <class V> static inline V tan_single(V x) {
    if (__builtin_expect(any_lane(magnitude(x) >= constant<V>(reducible)), false)) {
        return each_lane(x, [](float lane) { return ::tanf(lane); });
    }
    Integer<V> turns;
    const V r = reduce_turns(x, turns);
    const V square = r * r;
    const V sine = sine_near_zero(r, square), cosine = cosine_near_zero(square);
    const auto odd = (turns & 1) != Integer<V>{};
    const V result = (odd ? -cosine : sine) / (odd ? sine : cosine);
    return x == V{} ? x : result;
}

// asin(s) - s, over s, for s up to 1/2.
template <class V> MB_INLINE V arcsine_tail(V square) {
    return square * polynomial(square, 0x1.5555c8p-3f, 0x1.330204p-4f, 0x1.747bbep-5f, 0x1.8c3dcep-6f, 0x1.595d0ap-5f);
}
constexpr float half_pi = 0x1.921fb6p+0f, half_pi_rest = -0x1.777a5cp-25f;

template <class V> static inline V asin_single(V x) {
    const V a = magnitude(x);
    const auto far = a > constant<V>(0.5f);
    const V square = far ? constant<V>(0.5f) - constant<V>(0.5f) * a : a * a;
    const V s = far ? sqrt(square) : a;
    const V tail = s * arcsine_tail(square);
    const V flipped = (constant<V>(half_pi) - (s + s)) - ((tail + tail) - constant<V>(half_pi_rest));
    return copysign(far ? flipped : s + tail, x);
}
template <class V> static inline V acos_single(V x) {
    const V a = magnitude(x);
    const auto far = a > constant<V>(0.5f);
    const V square = far ? constant<V>(0.5f) - constant<V>(0.5f) * a : a * a;
    const V s = far ? sqrt(square) : x;
    const V tail = s * arcsine_tail(square);
    const V twice = (s + s) + (tail + tail);
    const V turned = constant<V>(2 * half_pi) - (twice - constant<V>(2 * half_pi_rest));
    const V middle = constant<V>(half_pi) - (s + (tail - constant<V>(half_pi_rest)));
    return far ? (x < V{} ? turned : twice) : middle;
}

// atan(t) for t from 0 to 1.
template <class V> MB_INLINE V arctangent_inside(V t) {
    const V square = t * t;
    const V tail = polynomial(square, -0x1.55553ep-2f, 0x1.9991e6p-3f, -0x1.2420b6p-3f, 0x1.c08f64p-4f, -0x1.58155ep-4f,
                              0x1.da5ed4p-5f, -0x1.fdfc1cp-6f, 0x1.64c1cep-7f, -0x1.d4984ap-10f);
    return tail * square * t + t;
}
template <class V> static inline V atan_single(V x) {
    const V a = magnitude(x);
    const auto far = a > constant<V>(1.0f);
    const V inside = arctangent_inside(far ? constant<V>(1.0f) / a : a);
    const V flipped = constant<V>(half_pi) - (inside - constant<V>(half_pi_rest));
    return copysign(far ? flipped : inside, x);
}
template <class V> static inline V atan2_single(V y, V x) {
    const V up = magnitude(y), across = magnitude(x);
    const auto steep = up > across;
    const V largest = steep ? up : across;
    V ratio = (steep ? across : up) / largest;
    ratio = largest == V{} ? V{} : ratio;
    ratio = up == across ? (largest == V{} ? V{} : constant<V>(1.0f)) : ratio;
    V angle = arctangent_inside(ratio);
    angle = steep ? constant<V>(half_pi) - (angle - constant<V>(half_pi_rest)) : angle;
    const V back = constant<V>(2 * half_pi) - (angle - constant<V>(2 * half_pi_rest));
    angle = sign_bit(x) != Integer<V>{} ? back : angle;
    // A NaN on either side comes out by way of the sum.
    const V sum = x + y;
    const auto missing = (x != x) | (y != y);
    return missing ? sum : copysign(angle, y);
}

}  // namespace mb::raw
