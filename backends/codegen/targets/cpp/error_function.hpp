// erf and erfc of floats.
//
// Place: included by `math.hpp`; over a scalar float or a native vector of them. Method: near zero an odd polynomial;
// beyond, erf is 1 - exp(-Q(x)), and erfc is exp(-x^2) P(u) / (1 + 2 x) with u = (x - 2) / (x + 2), where x^2 is kept
// in two parts. With 64-byte registers erf is one of sixteen polynomials, picked by x.
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

#if defined(__AVX512F__) && MB_VECTOR_BYTES == 64
#define MB_ERF_TABLE
// Polynomials of erf around 0, 1/4, 2/4, ... 15/4, one power after the other: a register holds a power's coefficients
// of all sixteen, and one instruction picks each lane's.
static const native_f32 erf_table[] = {
    {0x0.0p+0f, 0x1.1af54ep-2f, 0x1.0a7ef6p-1f, 0x1.6c1c98p-1f, 0x1.af767ap-1f, 0x1.d8865ep-1f,
     0x1.eea556p-1f, 0x1.f92d08p-1f, 0x1.fd9ae2p-1f, 0x1.ff4048p-1f, 0x1.ffcaa8p-1f, 0x1.fff2d0p-1f,
     0x1.fffd1ap-1f, 0x1.ffff70p-1f, 0x1.ffffe8p-1f, 0x1.fffffcp-1f},
    {0x1.06eba8p-3f, 0x1.0f5d18p+0f, 0x1.c1efccp-1f, 0x1.492e44p-1f, 0x1.a911f0p-2f, 0x1.e46530p-3f,
     0x1.e72372p-4f, 0x1.b05530p-5f, 0x1.529ba0p-6f, 0x1.d4143cp-8f, 0x1.1d8316p-9f, 0x1.3360ccp-11f,
     0x1.2408eap-13f, 0x1.e9b5e8p-16f, 0x1.6a5972p-18f, 0x1.d9371ep-21f},
    {0x0.0p+0f, -0x1.0f5be6p-2f, -0x1.c1ef04p-2f, -0x1.edc6fap-2f, -0x1.a91052p-2f, -0x1.2ec16ep-2f,
     -0x1.6d6018p-3f, -0x1.7a537cp-4f, -0x1.52b2dcp-5f, -0x1.0770dep-6f, -0x1.63ef3cp-8f, -0x1.a7ce7ap-10f,
     -0x1.a9ff2ep-12f, -0x1.a551fap-14f, -0x1.13274ap-15f, -0x1.2e9f8ep-21f},
    {-0x1.812678p-2f, -0x1.3c9e4ap-2f, -0x1.2bfe2cp-3f, 0x1.b6a974p-6f, 0x1.1b6240p-3f, 0x1.571c0ep-3f,
     0x1.1c2a24p-3f, 0x1.71495cp-4f, 0x1.8b0aeap-5f, 0x1.63ef50p-6f, 0x1.119d6cp-7f, 0x1.69cca6p-9f,
     0x1.9db0a6p-11f, 0x1.9a98bep-13f, 0x1.62bc9ep-15f, 0x1.0b5858p-17f},
    {0x0.0p+0f, 0x1.023cc6p-3f, 0x1.74fb96p-3f, 0x1.348658p-3f, 0x1.1a1452p-4f, -0x1.5b674ap-8f,
     -0x1.657d44p-5f, -0x1.84844ap-5f, -0x1.146726p-5f, -0x1.3030b2p-6f, -0x1.3a02dep-7f, -0x1.89e870p-9f,
     -0x1.d257e8p-10f, 0x1.fc89aap-15f, 0x1.a643dap-11f, -0x1.8742b0p-13f},
    {0x1.cbbd48p-4f, 0x1.4c4908p-4f, 0x1.1219f6p-7f, -0x1.aa8e94p-5f, -0x1.1ad758p-4f, -0x1.8105f4p-5f,
     -0x1.e9790ap-7f, 0x1.aa1308p-8f, 0x1.ab0788p-7f, 0x1.5ce466p-7f, 0x1.91968ap-8f, 0x1.6b3252p-9f,
     0x1.0cde32p-10f, 0x1.4d5a72p-12f, 0x1.5e5960p-14f, 0x1.3ad526p-16f},
};
MB_INLINE native_f32 pick(native_f32 table, native_i32 index) {
#if defined(__clang__)
    return __builtin_ia32_permvarsf512(table, index);
#else
    return __builtin_ia32_permvarsf512_mask(table, index, table, -1);
#endif
}
MB_INLINE native_f32 erf_by_table(native_f32 x) {
    const native_f32 a = magnitude(x);
    const native_f32 shifted = a * 4.0f + constant<native_f32>(rounding_shift);
    const native_i32 index = bits_of(shifted);
    const native_f32 d = a - (shifted - constant<native_f32>(rounding_shift)) * 0.25f;
    native_f32 value = pick(erf_table[5], index);
#pragma GCC unroll 4
    for (int power = 4; power > 0; --power) value = value * d + pick(erf_table[power], index);
    // Around 0 the polynomial is what a itself lacks: a is exact, so that only the last addition rounds. At 1/8 the index
    // is 0 still, since halves round to even.
    value = value * d + (a <= constant<native_f32>(0.125f) ? a : pick(erf_table[0], index));
    // From here on 1 is the nearest float, or its neighbour.
    value = a > constant<native_f32>(3.8325f) ? constant<native_f32>(1.0f) : value;
    // It has no sign yet.
    return bit_cast<native_f32>(bits_of(value) | (bits_of(x) & static_cast<i32>(0x80000000u)));
}
#endif

template <class V> MB_INLINE V erf_single(V x) {
#if defined(MB_ERF_TABLE)
    if constexpr (same<V, native_f32>) return erf_by_table(x);
#endif
    const V a = magnitude(x);
    const V inside = a > constant<V>(4.0f) ? constant<V>(4.0f) : a;
    const V power = polynomial(inside, 0x1.80b5d4p-13f, -0x1.212aa2p+0f, -0x1.443b06p-1f, -0x1.bbe47ap-4f,
                               0x1.9c875ep-6f, -0x1.12d3cep-8f, 0x1.cc6c12p-12f, -0x1.68a212p-16f);
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
