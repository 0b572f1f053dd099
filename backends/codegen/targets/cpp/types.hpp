// Types of generated kernels: numbers, native vectors, and `Vec<T>`: as many values as a register has floats.
//
// Place: the bottom of `vector.hpp`. Built on the compilers' vector extensions alone: no standard header is included,
// because reading one costs more than compiling a kernel.
// Invariants: a `Vec` of a 4-byte type is one register, of an 8-byte type two (wider native vectors would be split
// into scalars by some compilers). A lane of a `Mask` is 0 or -1.
#pragma once

#define MB_INLINE static inline __attribute__((always_inline))
#define MB_INLINE_MEMBER inline __attribute__((always_inline))

// Functions of g++ that are one instruction each.
#if defined(__AVX512F__) && MB_VECTOR_BYTES == 64 && !defined(__clang__)
#define MB_WIDE_BUILTINS
#endif

namespace mb {

using i64 = long long;
using i32 = int;
using i16 = short;
using i8 = signed char;
using u64 = unsigned long long;
using u32 = unsigned;
using u16 = unsigned short;
using u8 = unsigned char;

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

constexpr int lanes = MB_VECTOR_BYTES / 4;
constexpr int half_lanes = lanes / 2;

// Native vectors: a full register of each element type.
typedef float native_f32 __attribute__((vector_size(MB_VECTOR_BYTES)));
typedef double native_f64 __attribute__((vector_size(MB_VECTOR_BYTES)));
typedef i32 native_i32 __attribute__((vector_size(MB_VECTOR_BYTES)));
typedef i64 native_i64 __attribute__((vector_size(MB_VECTOR_BYTES)));
typedef u32 native_u32 __attribute__((vector_size(MB_VECTOR_BYTES)));
typedef u64 native_u64 __attribute__((vector_size(MB_VECTOR_BYTES)));
// `lanes` small integers, and half a register of 4-byte values (what an 8-byte register is converted from).
typedef i8 packed_i8 __attribute__((vector_size(MB_VECTOR_BYTES / 4)));
typedef u8 packed_u8 __attribute__((vector_size(MB_VECTOR_BYTES / 4)));
typedef i16 packed_i16 __attribute__((vector_size(MB_VECTOR_BYTES / 2)));
typedef u16 packed_u16 __attribute__((vector_size(MB_VECTOR_BYTES / 2)));
typedef float half_f32 __attribute__((vector_size(MB_VECTOR_BYTES / 2)));
typedef i32 half_i32 __attribute__((vector_size(MB_VECTOR_BYTES / 2)));

template <class T> struct NativeOf;
template <> struct NativeOf<float> { using type = native_f32; };
template <> struct NativeOf<double> { using type = native_f64; };
template <> struct NativeOf<i32> { using type = native_i32; };
template <> struct NativeOf<i64> { using type = native_i64; };
template <class T> using Native = typename NativeOf<T>::type;

// The integer that comparisons of a type give, and that has its bits: for scalars and native vectors.
template <class V> struct IntegerOf;
template <> struct IntegerOf<float> { using type = i32; };
template <> struct IntegerOf<double> { using type = i64; };
template <> struct IntegerOf<i32> { using type = i32; };
template <> struct IntegerOf<i64> { using type = i64; };
template <> struct IntegerOf<native_f32> { using type = native_i32; };
template <> struct IntegerOf<native_f64> { using type = native_i64; };
template <> struct IntegerOf<native_i32> { using type = native_i32; };
template <> struct IntegerOf<native_i64> { using type = native_i64; };
template <class V> using Integer = typename IntegerOf<V>::type;

template <class T, int registers> struct VecOf;
template <class T> struct VecOf<T, 1> {
    Native<T> v;
};
template <class T> struct VecOf<T, 2> {
    Native<T> low, high;
};
template <class T> using Vec = VecOf<T, sizeof(T) / 4>;

struct Mask {
    native_i32 v;
};

template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;

// The type that values stored as S are computed in.
template <class S> struct ComputeOf { using type = S; };
template <> struct ComputeOf<f16> { using type = float; };
template <> struct ComputeOf<bf16> { using type = float; };
template <> struct ComputeOf<i8> { using type = i32; };
template <> struct ComputeOf<u8> { using type = i32; };
template <> struct ComputeOf<i16> { using type = i32; };
template <class S> using Compute = typename ComputeOf<S>::type;

template <class T> constexpr bool is_number = false;
template <> constexpr bool is_number<float> = true;
template <> constexpr bool is_number<double> = true;
template <> constexpr bool is_number<i32> = true;
template <> constexpr bool is_number<i64> = true;

template <class To, class From> MB_INLINE To bit_cast(From value) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    if constexpr (is_number<To>) {
        To result;
        __builtin_memcpy(&result, &value, sizeof(To));
        return result;
    } else {
        return (To)value;
    }
}
template <class V> MB_INLINE Integer<V> bits_of(V value) { return bit_cast<Integer<V>>(value); }

// Every lane the same; the identity on scalars, so that one function can serve both.
template <class V, class T> MB_INLINE V fill(T value) {
    if constexpr (sizeof(V) == sizeof(T)) {
        return value;
    } else {
        return value - V{};
    }
}

template <class T, class S> MB_INLINE Vec<T> broadcast(S scalar) {
    const T value = static_cast<T>(scalar);
    if constexpr (sizeof(T) == 4) {
        return {fill<Native<T>>(value)};
    } else {
        return {fill<Native<T>>(value), fill<Native<T>>(value)};
    }
}
MB_INLINE Mask broadcast_mask(bool value) { return {native_i32{} - static_cast<i32>(value)}; }

// start, start + 1, ... in the lanes.
template <class T> MB_INLINE Vec<T> iota(T start) {
    constexpr int count = sizeof(Native<T>) / sizeof(T);
    Native<T> steps;
    for (int lane = 0; lane < count; ++lane) steps[lane] = static_cast<T>(lane);
    if constexpr (sizeof(T) == 4) {
        return {steps + start};
    } else {
        return {steps + start, steps + (start + static_cast<T>(count))};
    }
}

// One lane; `index` is best a constant.
template <class T> MB_INLINE T lane_of(VecOf<T, 1> value, int index) { return value.v[index]; }
template <class T> MB_INLINE T lane_of(VecOf<T, 2> value, int index) {
    return index < half_lanes ? value.low[index] : value.high[index - half_lanes];
}
MB_INLINE bool lane_of(Mask mask, int index) { return mask.v[index] != 0; }

// Halves of a vector, as their own type, and back. Shuffles, where the compiler has them (g++ from 12, clang++):
// copying 16 bytes through memory makes g++ take a vector apart in general registers.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define MB_SHUFFLES
#endif
#endif

template <class Half, class Full> MB_INLINE Half lower_half(Full value) {
#if defined(MB_SHUFFLES)
    constexpr int count = sizeof(Half) / sizeof(value[0]);
    if constexpr (count == 8) return __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7);
    else if constexpr (count == 4) return __builtin_shufflevector(value, value, 0, 1, 2, 3);
    else return __builtin_shufflevector(value, value, 0, 1);
#else
    Half result;
    __builtin_memcpy(&result, &value, sizeof(Half));
    return result;
#endif
}
template <class Half, class Full> MB_INLINE Half upper_half(Full value) {
#if defined(MB_SHUFFLES)
    constexpr int count = sizeof(Half) / sizeof(value[0]);
    if constexpr (count == 8) return __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
    else if constexpr (count == 4) return __builtin_shufflevector(value, value, 4, 5, 6, 7);
    else return __builtin_shufflevector(value, value, 2, 3);
#else
    Half result;
    __builtin_memcpy(&result, reinterpret_cast<const char*>(&value) + sizeof(Half), sizeof(Half));
    return result;
#endif
}
template <class Full, class Half> MB_INLINE Full join(Half low, Half high) {
#if defined(MB_SHUFFLES)
    constexpr int count = sizeof(Half) / sizeof(low[0]);
    if constexpr (count == 8) {
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    } else if constexpr (count == 4) {
        return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    } else {
        return __builtin_shufflevector(low, high, 0, 1, 2, 3);
    }
#else
    Full result;
    __builtin_memcpy(&result, &low, sizeof(Half));
    __builtin_memcpy(reinterpret_cast<char*>(&result) + sizeof(Half), &high, sizeof(Half));
    return result;
#endif
}

// The first `count` lanes.
MB_INLINE Mask first_lanes(i64 count) {
    const native_i32 limit = fill<native_i32>(static_cast<i32>(count > lanes ? lanes : count));
    return {iota<i32>(0).v < limit};
}

}  // namespace mb
