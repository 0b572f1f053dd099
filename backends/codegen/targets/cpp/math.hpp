// Elementary functions.
#pragma once
#include "arithmetic.hpp"

extern "C" {
float expf(float) noexcept(true);
double exp(double) noexcept(true);
float exp2f(float) noexcept(true);
double exp2(double) noexcept(true);
float expm1f(float) noexcept(true);
double expm1(double) noexcept(true);
float logf(float) noexcept(true);
double log(double) noexcept(true);
float log2f(float) noexcept(true);
double log2(double) noexcept(true);
float log10f(float) noexcept(true);
double log10(double) noexcept(true);
float log1pf(float) noexcept(true);
double log1p(double) noexcept(true);
float sinf(float) noexcept(true);
double sin(double) noexcept(true);
float cosf(float) noexcept(true);
double cos(double) noexcept(true);
float tanf(float) noexcept(true);
double tan(double) noexcept(true);
float asinf(float) noexcept(true);
double asin(double) noexcept(true);
float acosf(float) noexcept(true);
double acos(double) noexcept(true);
float atanf(float) noexcept(true);
double atan(double) noexcept(true);
float sinhf(float) noexcept(true);
double sinh(double) noexcept(true);
float coshf(float) noexcept(true);
double cosh(double) noexcept(true);
float tanhf(float) noexcept(true);
double tanh(double) noexcept(true);
float asinhf(float) noexcept(true);
double asinh(double) noexcept(true);
float acoshf(float) noexcept(true);
double acosh(double) noexcept(true);
float atanhf(float) noexcept(true);
double atanh(double) noexcept(true);
float erff(float) noexcept(true);
double erf(double) noexcept(true);
float erfcf(float) noexcept(true);
double erfc(double) noexcept(true);
float atan2f(float, float) noexcept(true);
double atan2(double, double) noexcept(true);
float powf(float, float) noexcept(true);
double pow(double, double) noexcept(true);
}

namespace mb {
namespace raw {
MB_INLINE float exp_lane(float a) { return ::expf(a); }
MB_INLINE double exp_lane(double a) { return ::exp(a); }
template <class V> MB_INLINE V exp(V a) {
    return each_lane(a, [](Element<V> x) { return exp_lane(x); });
}
MB_INLINE float exp2_lane(float a) { return ::exp2f(a); }
MB_INLINE double exp2_lane(double a) { return ::exp2(a); }
template <class V> MB_INLINE V exp2(V a) {
    return each_lane(a, [](Element<V> x) { return exp2_lane(x); });
}
MB_INLINE float expm1_lane(float a) { return ::expm1f(a); }
MB_INLINE double expm1_lane(double a) { return ::expm1(a); }
template <class V> MB_INLINE V expm1(V a) {
    return each_lane(a, [](Element<V> x) { return expm1_lane(x); });
}
MB_INLINE float log_lane(float a) { return ::logf(a); }
MB_INLINE double log_lane(double a) { return ::log(a); }
template <class V> MB_INLINE V log(V a) {
    return each_lane(a, [](Element<V> x) { return log_lane(x); });
}
MB_INLINE float log2_lane(float a) { return ::log2f(a); }
MB_INLINE double log2_lane(double a) { return ::log2(a); }
template <class V> MB_INLINE V log2(V a) {
    return each_lane(a, [](Element<V> x) { return log2_lane(x); });
}
MB_INLINE float log10_lane(float a) { return ::log10f(a); }
MB_INLINE double log10_lane(double a) { return ::log10(a); }
template <class V> MB_INLINE V log10(V a) {
    return each_lane(a, [](Element<V> x) { return log10_lane(x); });
}
MB_INLINE float log1p_lane(float a) { return ::log1pf(a); }
MB_INLINE double log1p_lane(double a) { return ::log1p(a); }
template <class V> MB_INLINE V log1p(V a) {
    return each_lane(a, [](Element<V> x) { return log1p_lane(x); });
}
MB_INLINE float sin_lane(float a) { return ::sinf(a); }
MB_INLINE double sin_lane(double a) { return ::sin(a); }
template <class V> MB_INLINE V sin(V a) {
    return each_lane(a, [](Element<V> x) { return sin_lane(x); });
}
MB_INLINE float cos_lane(float a) { return ::cosf(a); }
MB_INLINE double cos_lane(double a) { return ::cos(a); }
template <class V> MB_INLINE V cos(V a) {
    return each_lane(a, [](Element<V> x) { return cos_lane(x); });
}
MB_INLINE float tan_lane(float a) { return ::tanf(a); }
MB_INLINE double tan_lane(double a) { return ::tan(a); }
template <class V> MB_INLINE V tan(V a) {
    return each_lane(a, [](Element<V> x) { return tan_lane(x); });
}
MB_INLINE float asin_lane(float a) { return ::asinf(a); }
MB_INLINE double asin_lane(double a) { return ::asin(a); }
template <class V> MB_INLINE V asin(V a) {
    return each_lane(a, [](Element<V> x) { return asin_lane(x); });
}
MB_INLINE float acos_lane(float a) { return ::acosf(a); }
MB_INLINE double acos_lane(double a) { return ::acos(a); }
template <class V> MB_INLINE V acos(V a) {
    return each_lane(a, [](Element<V> x) { return acos_lane(x); });
}
MB_INLINE float atan_lane(float a) { return ::atanf(a); }
MB_INLINE double atan_lane(double a) { return ::atan(a); }
template <class V> MB_INLINE V atan(V a) {
    return each_lane(a, [](Element<V> x) { return atan_lane(x); });
}
MB_INLINE float sinh_lane(float a) { return ::sinhf(a); }
MB_INLINE double sinh_lane(double a) { return ::sinh(a); }
template <class V> MB_INLINE V sinh(V a) {
    return each_lane(a, [](Element<V> x) { return sinh_lane(x); });
}
MB_INLINE float cosh_lane(float a) { return ::coshf(a); }
MB_INLINE double cosh_lane(double a) { return ::cosh(a); }
template <class V> MB_INLINE V cosh(V a) {
    return each_lane(a, [](Element<V> x) { return cosh_lane(x); });
}
MB_INLINE float tanh_lane(float a) { return ::tanhf(a); }
MB_INLINE double tanh_lane(double a) { return ::tanh(a); }
template <class V> MB_INLINE V tanh(V a) {
    return each_lane(a, [](Element<V> x) { return tanh_lane(x); });
}
MB_INLINE float asinh_lane(float a) { return ::asinhf(a); }
MB_INLINE double asinh_lane(double a) { return ::asinh(a); }
template <class V> MB_INLINE V asinh(V a) {
    return each_lane(a, [](Element<V> x) { return asinh_lane(x); });
}
MB_INLINE float acosh_lane(float a) { return ::acoshf(a); }
MB_INLINE double acosh_lane(double a) { return ::acosh(a); }
template <class V> MB_INLINE V acosh(V a) {
    return each_lane(a, [](Element<V> x) { return acosh_lane(x); });
}
MB_INLINE float atanh_lane(float a) { return ::atanhf(a); }
MB_INLINE double atanh_lane(double a) { return ::atanh(a); }
template <class V> MB_INLINE V atanh(V a) {
    return each_lane(a, [](Element<V> x) { return atanh_lane(x); });
}
MB_INLINE float erf_lane(float a) { return ::erff(a); }
MB_INLINE double erf_lane(double a) { return ::erf(a); }
template <class V> MB_INLINE V erf(V a) {
    return each_lane(a, [](Element<V> x) { return erf_lane(x); });
}
MB_INLINE float erfc_lane(float a) { return ::erfcf(a); }
MB_INLINE double erfc_lane(double a) { return ::erfc(a); }
template <class V> MB_INLINE V erfc(V a) {
    return each_lane(a, [](Element<V> x) { return erfc_lane(x); });
}
MB_INLINE float atan2_lane(float a, float b) { return ::atan2f(a, b); }
MB_INLINE double atan2_lane(double a, double b) { return ::atan2(a, b); }
template <class V> MB_INLINE V atan2_floating(V a, V b) {
    return each_lane(a, b, [](Element<V> x, Element<V> y) { return atan2_lane(x, y); });
}
MB_INLINE float pow_lane(float a, float b) { return ::powf(a, b); }
MB_INLINE double pow_lane(double a, double b) { return ::pow(a, b); }
template <class V> MB_INLINE V pow_floating(V a, V b) {
    return each_lane(a, b, [](Element<V> x, Element<V> y) { return pow_lane(x, y); });
}
template <class V> MB_INLINE V pow(V a, V b) {
    if constexpr (is_floating<V>) {
        return pow_floating(a, b);
    } else {
        V result = fill<V>(Element<V>(1)), base = a, left = b;
        for (int bit = 0; bit < 64; ++bit) {
            result = (left & 1) != V{} ? result * base : result;
            base = base * base;
            left = left >> 1;
        }
        return result;
    }
}
template <class V> MB_INLINE V atan2(V a, V b) { return atan2_floating(a, b); }
template <class V> MB_INLINE V sigmoid(V a) { return reciprocal(fill<V>(Element<V>(1)) + exp(-a)); }
}  // namespace raw

MB_LIFT_UNARY(exp_, exp)
MB_LIFT_UNARY(exp2_, exp2)
MB_LIFT_UNARY(expm1_, expm1)
MB_LIFT_UNARY(log_, log)
MB_LIFT_UNARY(log2_, log2)
MB_LIFT_UNARY(log10_, log10)
MB_LIFT_UNARY(log1p_, log1p)
MB_LIFT_UNARY(sin_, sin)
MB_LIFT_UNARY(cos_, cos)
MB_LIFT_UNARY(tan_, tan)
MB_LIFT_UNARY(asin_, asin)
MB_LIFT_UNARY(acos_, acos)
MB_LIFT_UNARY(atan_, atan)
MB_LIFT_UNARY(sinh_, sinh)
MB_LIFT_UNARY(cosh_, cosh)
MB_LIFT_UNARY(tanh_, tanh)
MB_LIFT_UNARY(asinh_, asinh)
MB_LIFT_UNARY(acosh_, acosh)
MB_LIFT_UNARY(atanh_, atanh)
MB_LIFT_UNARY(erf_, erf)
MB_LIFT_UNARY(erfc_, erfc)
MB_LIFT_UNARY(sigmoid_, sigmoid)
MB_LIFT_BINARY(atan2_, atan2)
MB_LIFT_BINARY(pow_, pow)

}  // namespace mb
