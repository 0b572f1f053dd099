// Conversions between types as torch makes them.
//
// Place: above `types.hpp`. Input and output: scalars, `Vec` and `Mask`; `convert<To>` takes any of them.
// Invariants: storing to 16-bit floats rounds to nearest even, NaN stays NaN; floats truncate towards zero on their way
// to integers, out of range as x86 does (the lowest integer); integers wrap; anything but zero is true.
#pragma once
#include "types.hpp"

namespace mb {

// ---- small integers to 32 bits: one instruction, where g++ does not find it by itself -----------------------------

#if defined(__AVX512F__) && MB_VECTOR_BYTES == 64 && !defined(__clang__)
typedef char plain_char __attribute__((vector_size(16)));
MB_INLINE native_i32 widen_small(packed_u8 x) {
    return __builtin_ia32_pmovzxbd512_mask((plain_char)x, native_i32{}, -1);
}
MB_INLINE native_i32 widen_small(packed_i8 x) {
    return __builtin_ia32_pmovsxbd512_mask((plain_char)x, native_i32{}, -1);
}
MB_INLINE native_i32 widen_small(packed_u16 x) {
    return __builtin_ia32_pmovzxwd512_mask((packed_i16)x, native_i32{}, -1);
}
MB_INLINE native_i32 widen_small(packed_i16 x) {
    return __builtin_ia32_pmovsxwd512_mask(x, native_i32{}, -1);
}
#else
template <class V> MB_INLINE native_i32 widen_small(V x) { return __builtin_convertvector(x, native_i32); }
#endif

// ---- 16-bit floats ------------------------------------------------------------------------------------------------

template <class F> MB_INLINE F bfloat16_widen(Integer<F> bits) { return bit_cast<F>(bits << 16); }

template <class F> MB_INLINE Integer<F> bfloat16_narrow(F value) {
    using I = Integer<F>;
    const I bits = bits_of(value);
    const I rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff;
    return value != value ? fill<I>(0x7fc0) : rounded;
}

MB_INLINE packed_u16 bfloat16_pack(native_f32 value) {
#if defined(MB_WIDE_BUILTINS) && defined(__AVX512BF16__) && defined(__AVX512DQ__)
    // The instruction takes denormals for zeros.
    if (__builtin_expect(__builtin_ia32_fpclassps512_mask(value, 0x20, -1) == 0, 1)) {
        return bit_cast<packed_u16>(__builtin_ia32_cvtneps2bf16_v16sf(value));
    }
#endif
    return __builtin_convertvector(bfloat16_narrow(value), packed_u16);
}

#if defined(__F16C__)
typedef _Float16 packed_f16 __attribute__((vector_size(MB_VECTOR_BYTES / 2)));
#endif

// float16 by integer arithmetic: the exponent is moved by a multiplication, which makes denormals right.
template <class F> MB_INLINE F float16_widen_bits(Integer<F> bits) {
    using I = Integer<F>;
    const I magnitude = (bits & 0x7fff) << 13;
    const F scaled = bit_cast<F>(magnitude) * fill<F>(0x1p112f);
    const F special = bit_cast<F>(magnitude | 0x7f800000);
    const F value = magnitude >= fill<I>(0x0f800000) ? special : scaled;
    return bit_cast<F>(bits_of(value) | ((bits & 0x8000) << 16));
}
template <class F> MB_INLINE Integer<F> float16_narrow_bits(F value) {
    using I = Integer<F>;
    const I bits = bits_of(value);
    const I sign = (bits >> 16) & 0x8000;
    const I magnitude = bits & 0x7fffffff;
    const I normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Adding 0.5 leaves a denormal's bits, rounded, at the low end of the sum.
    const I small = bits_of(bit_cast<F>(magnitude) + fill<F>(0.5f)) - 0x3f000000;
    I result = magnitude < fill<I>(0x38800000) ? small : normal;
    result = magnitude >= fill<I>(0x477ff000) ? fill<I>(0x7c00) : result;
    result = magnitude > fill<I>(0x7f800000) ? fill<I>(0x7e00) : result;
    return result | sign;
}

MB_INLINE native_f32 float16_widen(packed_u16 bits) {
#if defined(__F16C__) && defined(__clang__)
    return __builtin_convertvector(bit_cast<packed_f16>(bits), native_f32);
#elif defined(__AVX512F__) && MB_VECTOR_BYTES == 64
    return __builtin_ia32_vcvtph2ps512_mask(bit_cast<packed_i16>(bits), native_f32{}, -1, 4);
#elif defined(__F16C__) && MB_VECTOR_BYTES == 32
    return __builtin_ia32_vcvtph2ps256(bit_cast<packed_i16>(bits));
#else
    return float16_widen_bits<native_f32>(widen_small(bits));
#endif
}
MB_INLINE packed_u16 float16_narrow(native_f32 value) {
#if defined(__F16C__) && defined(__clang__)
    return bit_cast<packed_u16>(__builtin_convertvector(value, packed_f16));
#elif defined(__AVX512F__) && MB_VECTOR_BYTES == 64
    return bit_cast<packed_u16>(__builtin_ia32_vcvtps2ph512_mask(value, 0, packed_i16{}, -1));
#elif defined(__F16C__) && MB_VECTOR_BYTES == 32
    return bit_cast<packed_u16>(__builtin_ia32_vcvtps2ph256(value, 0));
#else
    return __builtin_convertvector(float16_narrow_bits(value), packed_u16);
#endif
}

MB_INLINE float widen(f16 value) { return float16_widen_bits<float>(value.bits); }
MB_INLINE float widen(bf16 value) { return bfloat16_widen<float>(value.bits); }
template <class T> MB_INLINE T widen(T value) { return value; }
template <class S> MB_INLINE S narrow(float value) {
    if constexpr (same<S, f16>) {
        return {static_cast<u16>(float16_narrow_bits(value))};
    } else {
        return {static_cast<u16>(bfloat16_narrow(value))};
    }
}

// ---- integers below 32 bits live in i32 ---------------------------------------------------------------------------

template <class S, class V> MB_INLINE V wrap_raw(V value) {
    if constexpr (same<V, i32> || same<V, i64>) {
        return static_cast<S>(value);
    } else if constexpr (same<S, u8>) {
        return value & 0xff;
    } else if constexpr (same<S, i8>) {
        return (value << 24) >> 24;
    } else if constexpr (same<S, i16>) {
        return (value << 16) >> 16;
    } else {
        return value;
    }
}
template <class S> MB_INLINE i32 wrap(i32 value) { return wrap_raw<S>(value); }
template <class S> MB_INLINE Vec<i32> wrap(Vec<i32> value) { return {wrap_raw<S>(value.v)}; }

// ---- vectors ------------------------------------------------------------------------------------------------------

// Half a register of 4-byte values as a whole one of 8-byte values; g++ converts quarters and joins them.
template <class To, class Half> MB_INLINE Native<To> lengthened(Half x) {
#if defined(MB_WIDE_BUILTINS)
    if constexpr (same<To, double> && same<Half, half_f32>) {
        return __builtin_ia32_cvtps2pd512_mask(x, native_f64{}, -1, 4);
    } else if constexpr (same<To, double> && same<Half, half_i32>) {
        return __builtin_ia32_cvtdq2pd512_mask(x, native_f64{}, -1);
    } else if constexpr (same<To, i64> && same<Half, half_i32>) {
        return __builtin_ia32_pmovsxdq512_mask(x, native_i64{}, -1);
    }
#endif
    return __builtin_convertvector(x, Native<To>);
}

template <class To, class From> MB_INLINE Vec<To> convert_number(Vec<From> x) {
    using Half = typename NativeOf<To>::type;
    if constexpr (same<To, From>) {
        return x;
    } else if constexpr (sizeof(To) == 4 && sizeof(From) == 4) {
        return {__builtin_convertvector(x.v, Half)};
    } else if constexpr (sizeof(To) == 8 && sizeof(From) == 8) {
        return {__builtin_convertvector(x.low, Half), __builtin_convertvector(x.high, Half)};
    } else if constexpr (sizeof(To) == 8) {
        typedef From Narrow __attribute__((vector_size(MB_VECTOR_BYTES / 2)));
        return {lengthened<To>(lower_half<Narrow>(x.v)), lengthened<To>(upper_half<Narrow>(x.v))};
    } else {
        typedef To Narrow __attribute__((vector_size(MB_VECTOR_BYTES / 2)));
        return {join<Half>(__builtin_convertvector(x.low, Narrow), __builtin_convertvector(x.high, Narrow))};
    }
}

MB_INLINE Mask mask_of(native_i64 low, native_i64 high) {
    return {join<native_i32>(__builtin_convertvector(low, half_i32), __builtin_convertvector(high, half_i32))};
}
template <class T> MB_INLINE Mask nonzero(VecOf<T, 1> x) { return {x.v != Native<T>{}}; }
template <class T> MB_INLINE Mask nonzero(VecOf<T, 2> x) {
    return mask_of(x.low != Native<T>{}, x.high != Native<T>{});
}

template <class T> MB_INLINE Vec<T> choose(Mask mask, Vec<T> a, Vec<T> b) {
    if constexpr (sizeof(T) == 4) {
        return {mask.v ? a.v : b.v};
    } else {
        const Vec<i64> wide = convert_number<i64>(Vec<i32>{mask.v});
        return {wide.low ? a.low : b.low, wide.high ? a.high : b.high};
    }
}

// Type of `convert<To>` of a vector: small integers live in i32, bool in a mask.
template <class To> struct ConvertedOf { using type = Vec<Compute<To>>; };
template <> struct ConvertedOf<bool> { using type = Mask; };

template <class To, class From> MB_INLINE typename ConvertedOf<To>::type convert_vector(Vec<From> x) {
    if constexpr (same<To, bool>) {
        return nonzero(x);
    } else if constexpr (same<To, f16> || same<To, bf16> || sizeof(To) >= 4) {
        return convert_number<Compute<To>>(x);
    } else if constexpr (same<To, u8> && !same<From, i32> && !same<From, i64>) {
        // As eager does: by way of 64 bits.
        return wrap<To>(convert_number<i32>(convert_number<i64>(x)));
    } else {
        return wrap<To>(convert_number<i32>(x));
    }
}
template <class To, class From> MB_INLINE typename ConvertedOf<To>::type convert(VecOf<From, 1> x) {
    return convert_vector<To, From>(x);
}
template <class To, class From> MB_INLINE typename ConvertedOf<To>::type convert(VecOf<From, 2> x) {
    return convert_vector<To, From>(x);
}
template <class To> MB_INLINE typename ConvertedOf<To>::type convert(Mask x) {
    if constexpr (same<To, bool>) {
        return x;
    } else {
        return convert_number<Compute<To>>(Vec<i32>{-x.v});
    }
}

// ---- scalars ------------------------------------------------------------------------------------------------------

template <class I, class F> MB_INLINE I truncate_to(F value) {
    // Spelled out where C++ leaves it open: what the instruction gives.
    constexpr F limit = sizeof(I) == 4 ? F(0x1p31) : F(0x1p63);
    constexpr I lowest = sizeof(I) == 4 ? I(-0x7fffffff - 1) : I(-0x7fffffffffffffffLL - 1);
    return value >= -limit && value < limit ? static_cast<I>(value) : lowest;
}

template <class To> struct ScalarOf { using type = Compute<To>; };

template <class To, class From> MB_INLINE typename ScalarOf<To>::type convert(From given) {
    const auto x = widen(given);
    using Given = Compute<From>;
    constexpr bool floating = same<Given, float> || same<Given, double>;
    if constexpr (same<To, bool>) {
        return x != 0;
    } else if constexpr (same<To, float> || same<To, double> || same<To, f16> || same<To, bf16> || same<Given, bool>) {
        return static_cast<Compute<To>>(x);
    } else if constexpr (!floating) {
        return wrap_raw<To>(static_cast<Compute<To>>(x));
    } else if constexpr (same<To, i64> || same<To, u8>) {
        return static_cast<Compute<To>>(wrap_raw<To>(truncate_to<i64>(x)));
    } else {
        return wrap_raw<To>(truncate_to<i32>(x));
    }
}

}  // namespace mb
