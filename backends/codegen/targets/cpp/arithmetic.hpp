// Arithmetic, rounding, comparison, logic and selection, for scalars and `Vec` alike.
//
// Place: above `convert.hpp`. Every function exists once in `raw`, over a scalar or a native vector, and is lifted to
// `Vec` register by register.
// Invariants: integers wrap (compile with -fwrapv); minimum and maximum propagate NaN; dividing an integer by zero
// gives zero instead of ending the process.
#pragma once
#include "convert.hpp"
#include "masked.hpp"

namespace mb {

// ---- lifting: raw::NAME over a scalar or register -> NAME over scalars and Vec ------------------------------------

#define MB_LIFT_UNARY(name, raw_name)                                                                              \
    template <class T> MB_INLINE T name(T a) { return raw::raw_name(a); }                                          \
    template <class T> MB_INLINE Vec<T> name(VecOf<T, 1> a) { return {raw::raw_name(a.v)}; }                       \
    template <class T> MB_INLINE Vec<T> name(VecOf<T, 2> a) { return {raw::raw_name(a.low), raw::raw_name(a.high)}; }

#define MB_LIFT_BINARY(name, raw_name)                                                                             \
    template <class T> MB_INLINE T name(T a, T b) { return raw::raw_name(a, b); }                                  \
    template <class T> MB_INLINE Vec<T> name(VecOf<T, 1> a, VecOf<T, 1> b) { return {raw::raw_name(a.v, b.v)}; }   \
    template <class T> MB_INLINE Vec<T> name(VecOf<T, 2> a, VecOf<T, 2> b) {                                       \
        return {raw::raw_name(a.low, b.low), raw::raw_name(a.high, b.high)};                                       \
    }

#define MB_LIFT_COMPARISON(name, operation)                                                                        \
    template <class T> MB_INLINE bool name(T a, T b) { return a operation b; }                                     \
    template <class T> MB_INLINE Mask name(VecOf<T, 1> a, VecOf<T, 1> b) { return {a.v operation b.v}; }           \
    template <class T> MB_INLINE Mask name(VecOf<T, 2> a, VecOf<T, 2> b) {                                         \
        return mask_of(a.low operation b.low, a.high operation b.high);                                            \
    }

namespace raw {

template <class V> constexpr bool is_floating = false;
template <> constexpr bool is_floating<float> = true;
template <> constexpr bool is_floating<double> = true;
template <> constexpr bool is_floating<native_f32> = true;
template <> constexpr bool is_floating<native_f64> = true;

template <class V> struct ElementOf { using type = V; };
template <> struct ElementOf<native_f32> { using type = float; };
template <> struct ElementOf<native_f64> { using type = double; };
template <> struct ElementOf<native_i32> { using type = i32; };
template <> struct ElementOf<native_i64> { using type = i64; };
template <class V> using Element = typename ElementOf<V>::type;

template <class V> constexpr bool is_vector = sizeof(V) != sizeof(Element<V>);

// A function of scalars, lane by lane.
template <class V, class Function> MB_INLINE V each_lane(V a, Function function) {
    if constexpr (is_vector<V>) {
        V result;
        for (int lane = 0; lane < static_cast<int>(sizeof(V) / sizeof(Element<V>)); ++lane) {
            result[lane] = function(a[lane]);
        }
        return result;
    } else {
        return function(a);
    }
}
template <class V, class Function> MB_INLINE V each_lane(V a, V b, Function function) {
    if constexpr (is_vector<V>) {
        V result;
        for (int lane = 0; lane < static_cast<int>(sizeof(V) / sizeof(Element<V>)); ++lane) {
            result[lane] = function(a[lane], b[lane]);
        }
        return result;
    } else {
        return function(a, b);
    }
}

template <class V> MB_INLINE V add(V a, V b) { return a + b; }
template <class V> MB_INLINE V sub(V a, V b) { return a - b; }
template <class V> MB_INLINE V mul(V a, V b) { return a * b; }
template <class V> MB_INLINE V neg(V a) { return -a; }
template <class V> MB_INLINE V reciprocal(V a) { return fill<V>(Element<V>(1)) / a; }

template <class V> MB_INLINE V magnitude(V a) {
    if constexpr (sizeof(Element<V>) == 4) {
        return bit_cast<V>(bits_of(a) & 0x7fffffff);
    } else {
        return bit_cast<V>(bits_of(a) & 0x7fffffffffffffffLL);
    }
}
template <class V> MB_INLINE Integer<V> sign_bit(V a) { return bits_of(a) ^ bits_of(magnitude(a)); }
template <class V> MB_INLINE V copysign(V a, V b) { return bit_cast<V>(bits_of(magnitude(a)) | sign_bit(b)); }

template <class V> MB_INLINE V abs(V a) {
    if constexpr (is_floating<V>) {
        return magnitude(a);
    } else {
        return a < V{} ? -a : a;
    }
}
template <class V> MB_INLINE V sign(V a) {
    const V one = fill<V>(Element<V>(1));
    // NaN gives 0, as in eager.
    return a > V{} ? one : (a < V{} ? -one : V{});
}
#ifdef MB_MASKED_REGISTERS
// The instruction gives `b` where either is NaN: the lanes where `a` is NaN are left out. Only `a` is looked at twice.
MB_INLINE native_f32 minimum(native_f32 a, native_f32 b) {
    return __builtin_ia32_minps512_mask(a, b, a, __builtin_ia32_cmpps512_mask(a, a, 7, -1, 4), 4);
}
MB_INLINE native_f64 minimum(native_f64 a, native_f64 b) {
    return __builtin_ia32_minpd512_mask(a, b, a, __builtin_ia32_cmppd512_mask(a, a, 7, -1, 4), 4);
}
MB_INLINE native_f32 maximum(native_f32 a, native_f32 b) {
    return __builtin_ia32_maxps512_mask(a, b, a, __builtin_ia32_cmpps512_mask(a, a, 7, -1, 4), 4);
}
MB_INLINE native_f64 maximum(native_f64 a, native_f64 b) {
    return __builtin_ia32_maxpd512_mask(a, b, a, __builtin_ia32_cmppd512_mask(a, a, 7, -1, 4), 4);
}
#endif
template <class V> MB_INLINE V minimum(V a, V b) {
    if constexpr (is_floating<V>) {
        const V least = a < b ? a : b;
        return a != a ? a : least;
    } else {
        return a < b ? a : b;
    }
}
template <class V> MB_INLINE V maximum(V a, V b) {
    if constexpr (is_floating<V>) {
        const V most = a > b ? a : b;
        return a != a ? a : most;
    } else {
        return a > b ? a : b;
    }
}

MB_INLINE float root(float a) { return __builtin_sqrtf(a); }
MB_INLINE double root(double a) { return __builtin_sqrt(a); }
template <class V> MB_INLINE V sqrt(V a) {
    return each_lane(a, [](Element<V> x) { return root(x); });
}
template <class V> MB_INLINE V rsqrt(V a) { return reciprocal(sqrt(a)); }

#define MB_ROUNDING(name, single, twofold)                                         \
    MB_INLINE float name##_lane(float a) { return single(a); }                     \
    MB_INLINE double name##_lane(double a) { return twofold(a); }                  \
    template <class V> MB_INLINE V name(V a) {                                     \
        return each_lane(a, [](Element<V> x) { return name##_lane(x); });          \
    }
MB_ROUNDING(floor, __builtin_floorf, __builtin_floor)
MB_ROUNDING(ceil, __builtin_ceilf, __builtin_ceil)
MB_ROUNDING(trunc, __builtin_truncf, __builtin_trunc)
// The default rounding mode is half to even; unlike rint, nearbyint and roundeven compile to one instruction anyway.
MB_ROUNDING(round, __builtin_rintf, __builtin_rint)
#undef MB_ROUNDING

template <class V> MB_INLINE V round_bfloat16(V a) {
    if constexpr (same<V, native_f32>) {
        return bfloat16_widen<V>(widen_small(bfloat16_pack(a)));
    } else {
        return bfloat16_widen<V>(bfloat16_narrow(a));
    }
}
MB_INLINE float round_float16(float a) { return float16_widen_bits<float>(float16_narrow_bits(a)); }
MB_INLINE native_f32 round_float16(native_f32 a) { return float16_widen(float16_narrow(a)); }

template <class V> MB_INLINE V bit_and(V a, V b) { return a & b; }
template <class V> MB_INLINE V bit_or(V a, V b) { return a | b; }
template <class V> MB_INLINE V bit_xor(V a, V b) { return a ^ b; }
template <class V> MB_INLINE V bit_not(V a) { return ~a; }

// Shifts by a negative count or by the width and more: zero, or the sign.
template <class V> MB_INLINE V shift_left(V a, V count) {
    constexpr Element<V> width = sizeof(Element<V>) * 8;
    const V inside = count & (width - 1);
    return count == inside ? a << inside : V{};
}
template <class V> MB_INLINE V shift_right(V a, V count) {
    constexpr Element<V> width = sizeof(Element<V>) * 8;
    const V inside = count & (width - 1);
    return a >> (count == inside ? inside : fill<V>(Element<V>(width - 1)));
}

}  // namespace raw
}  // namespace mb

#include "division.hpp"

namespace mb {

MB_LIFT_BINARY(add, add)
MB_LIFT_BINARY(sub, sub)
MB_LIFT_BINARY(mul, mul)
MB_LIFT_BINARY(div, divide)
MB_LIFT_BINARY(floor_div, floor_div)
MB_LIFT_BINARY(trunc_div, trunc_div)
MB_LIFT_BINARY(remainder, remainder)
MB_LIFT_BINARY(remainder_, remainder)
MB_LIFT_BINARY(fmod, fmod)
MB_LIFT_BINARY(fmod_, fmod)
MB_LIFT_BINARY(minimum, minimum)
MB_LIFT_BINARY(maximum, maximum)
MB_LIFT_BINARY(copysign_, copysign)
MB_LIFT_UNARY(neg, neg)
MB_LIFT_UNARY(abs_, abs)
MB_LIFT_UNARY(sign, sign)
MB_LIFT_UNARY(reciprocal, reciprocal)
MB_LIFT_UNARY(sqrt_, sqrt)
MB_LIFT_UNARY(rsqrt_, rsqrt)
MB_LIFT_UNARY(floor_, floor)
MB_LIFT_UNARY(ceil_, ceil)
MB_LIFT_UNARY(trunc_, trunc)
MB_LIFT_UNARY(round_, round)
MB_LIFT_UNARY(round_float16, round_float16)
MB_LIFT_UNARY(round_bfloat16, round_bfloat16)

MB_LIFT_COMPARISON(eq, ==)
MB_LIFT_COMPARISON(ne, !=)
MB_LIFT_COMPARISON(lt, <)
MB_LIFT_COMPARISON(le, <=)
MB_LIFT_COMPARISON(gt, >)
MB_LIFT_COMPARISON(ge, >=)

template <class V> MB_INLINE auto isnan_(V a) { return ne(a, a); }

MB_LIFT_BINARY(and_, bit_and)
MB_LIFT_BINARY(or_, bit_or)
MB_LIFT_BINARY(xor_, bit_xor)
MB_LIFT_UNARY(not_, bit_not)
MB_LIFT_BINARY(shift_left, shift_left)
MB_LIFT_BINARY(shift_right, shift_right)

// On bool the bitwise operations are the logical ones, and false is below true.
MB_INLINE bool and_(bool a, bool b) { return a & b; }
MB_INLINE bool or_(bool a, bool b) { return a | b; }
MB_INLINE bool xor_(bool a, bool b) { return a ^ b; }
MB_INLINE bool not_(bool a) { return !a; }
MB_INLINE bool minimum(bool a, bool b) { return a & b; }
MB_INLINE bool maximum(bool a, bool b) { return a | b; }
MB_INLINE Mask and_(Mask a, Mask b) { return {a.v & b.v}; }
MB_INLINE Mask or_(Mask a, Mask b) { return {a.v | b.v}; }
MB_INLINE Mask xor_(Mask a, Mask b) { return {a.v ^ b.v}; }
MB_INLINE Mask not_(Mask a) { return {~a.v}; }
MB_INLINE Mask minimum(Mask a, Mask b) { return and_(a, b); }
MB_INLINE Mask maximum(Mask a, Mask b) { return or_(a, b); }
MB_INLINE Mask eq(Mask a, Mask b) { return {~(a.v ^ b.v)}; }
MB_INLINE Mask ne(Mask a, Mask b) { return {a.v ^ b.v}; }
MB_INLINE Mask lt(Mask a, Mask b) { return {~a.v & b.v}; }
MB_INLINE Mask le(Mask a, Mask b) { return {~a.v | b.v}; }
MB_INLINE Mask gt(Mask a, Mask b) { return {a.v & ~b.v}; }
MB_INLINE Mask ge(Mask a, Mask b) { return {a.v | ~b.v}; }

template <class T> MB_INLINE T select(bool condition, T a, T b) { return condition ? a : b; }
template <class T> MB_INLINE Vec<T> select(Mask condition, VecOf<T, 1> a, VecOf<T, 1> b) {
    return choose<T>(condition, a, b);
}
template <class T> MB_INLINE Vec<T> select(Mask condition, VecOf<T, 2> a, VecOf<T, 2> b) {
    return choose<T>(condition, a, b);
}
MB_INLINE Mask select(Mask condition, Mask a, Mask b) {
    return {(condition.v & a.v) | (~condition.v & b.v)};
}

}  // namespace mb
