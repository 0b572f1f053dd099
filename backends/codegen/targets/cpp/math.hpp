// Elementary functions of scalars and `Vec`.
//
// Place: above `arithmetic.hpp`. Floats are computed by our own approximations, whole vectors at a time, within a few
// units in the last place; doubles by the C library, lane by lane.
#pragma once
#include "error_function.hpp"
#include "exponential.hpp"
#include "logarithm.hpp"
#include "power.hpp"
#include "trigonometry.hpp"

extern "C" {
double exp(double) noexcept(true);
double exp2(double) noexcept(true);
double expm1(double) noexcept(true);
double log(double) noexcept(true);
double log2(double) noexcept(true);
double log10(double) noexcept(true);
double log1p(double) noexcept(true);
double sin(double) noexcept(true);
double cos(double) noexcept(true);
double tan(double) noexcept(true);
double asin(double) noexcept(true);
double acos(double) noexcept(true);
double atan(double) noexcept(true);
double sinh(double) noexcept(true);
double cosh(double) noexcept(true);
double tanh(double) noexcept(true);
double asinh(double) noexcept(true);
double acosh(double) noexcept(true);
double atanh(double) noexcept(true);
double erf(double) noexcept(true);
double erfc(double) noexcept(true);
double atan2(double, double) noexcept(true);
double pow(double, double) noexcept(true);
}

namespace mb {

#define MB_ELEMENTARY(name)                                                            \
    namespace raw {                                                                    \
    template <class V> MB_INLINE V name##_any(V x) {                                   \
        if constexpr (same<Element<V>, float>) {                                       \
            return name##_single(x);                                                   \
        } else {                                                                       \
            return each_lane(x, [](double lane) { return ::name(lane); });             \
        }                                                                              \
    }                                                                                  \
    }                                                                                  \
    MB_LIFT_UNARY(name##_, name##_any)
MB_ELEMENTARY(exp)
MB_ELEMENTARY(exp2)
MB_ELEMENTARY(expm1)
MB_ELEMENTARY(log)
MB_ELEMENTARY(log2)
MB_ELEMENTARY(log10)
MB_ELEMENTARY(log1p)
MB_ELEMENTARY(sin)
MB_ELEMENTARY(cos)
MB_ELEMENTARY(tan)
MB_ELEMENTARY(asin)
MB_ELEMENTARY(acos)
MB_ELEMENTARY(atan)
MB_ELEMENTARY(sinh)
MB_ELEMENTARY(cosh)
MB_ELEMENTARY(tanh)
MB_ELEMENTARY(asinh)
MB_ELEMENTARY(acosh)
MB_ELEMENTARY(atanh)
MB_ELEMENTARY(erf)
MB_ELEMENTARY(erfc)
#undef MB_ELEMENTARY

namespace raw {
template <class V> MB_INLINE V sigmoid_any(V x) {
    if constexpr (same<Element<V>, float>) {
        return sigmoid_single(x);
    } else {
        const V one = fill<V>(1.0);
        return one / (one + exp_any(-x));
    }
}
// Share of the standard normal distribution below x; below -5 a multiple of half the spacing of numbers at 1.
template <class V> MB_INLINE V normal_any(V x) {
    using T = Element<V>;
    return fill<V>(T(0.5)) * (fill<V>(T(1)) + erf_any(x * fill<V>(T(0.7071067811865476))));
}
template <class V> MB_INLINE V atan2_any(V y, V x) {
    if constexpr (same<Element<V>, float>) {
        return atan2_single(y, x);
    } else {
        return each_lane(y, x, [](double a, double b) { return ::atan2(a, b); });
    }
}
template <class V> MB_INLINE V pow_any(V a, V b) {
    if constexpr (same<Element<V>, float>) {
        return pow_single(a, b);
    } else if constexpr (is_floating<V>) {
        return each_lane(a, b, [](double x, double y) { return ::pow(x, y); });
    } else {
        return pow_integer(a, b);
    }
}
}  // namespace raw
MB_LIFT_UNARY(sigmoid_, sigmoid_any)
MB_LIFT_UNARY(normal_, normal_any)
MB_LIFT_BINARY(atan2_, atan2_any)
MB_LIFT_BINARY(pow_, pow_any)

}  // namespace mb
