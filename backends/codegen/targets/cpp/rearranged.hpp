// Loads that put lanes in another order in registers: squares turned, every second element, backwards.
//
// Place: above `vector.hpp`, part of `kernel.hpp`.
// Invariants: no element is read that the plain loads of `memory.hpp` would not read, but those between the first and the
// last one of `load_even`.
#pragma once

namespace mb {

template <int... numbers> struct Sequence {};
template <int count, int... numbers> struct CountTo : CountTo<count - 1, count - 1, numbers...> {};
template <int... numbers> struct CountTo<0, numbers...> {
    using type = Sequence<numbers...>;
};
using AllLanes = typename CountTo<lanes>::type;

using HalfLanes = typename CountTo<half_lanes>::type;

// Lane i is lane `number[i]` of the two vectors, one after the other.
template <int... number, class V> MB_INLINE V picked(V first, V second) {
#if defined(MB_SHUFFLES)
    return __builtin_shufflevector(first, second, number...);
#else
    constexpr int count = sizeof...(number);
    V result;
    int lane = 0;
    ((result[lane++] = number < count ? first[number % count] : second[number % count]), ...);
    return result;
#endif
}

// Exchanges the blocks of `step` lanes off the diagonal of two rows that are `step` apart.
template <int step, class V, int... lane> MB_INLINE void exchange(V& low, V& high, Sequence<lane...>) {
    constexpr int count = sizeof...(lane);
    const V upper = picked<((lane & step) ? count + lane - step : lane)...>(low, high);
    high = picked<((lane & step) ? count + lane : lane + step)...>(low, high);
    low = upper;
}
// A square of as many registers as one has lanes.
template <int step, class V, int... lane> MB_INLINE void turn_blocks(V* rows, Sequence<lane...> all) {
    constexpr int count = sizeof...(lane);
    if constexpr (step < count) {
#pragma GCC unroll 16
        for (int row = 0; row < count; ++row) {
            if (!(row & step)) exchange<step>(rows[row], rows[row + step], all);
        }
        turn_blocks<2 * step>(rows, all);
    }
}
// columns[j] has lane i where `pointer[i * stride + j]` is.
template <class T, class S> MB_INLINE void load_turned(VecOf<T, 1>* columns, const S* pointer, i64 stride) {
    Native<T> rows[lanes];
#pragma GCC unroll 16
    for (int row = 0; row < lanes; ++row) rows[row] = load<T>(pointer + row * stride).v;
    turn_blocks<1>(rows, AllLanes{});
#pragma GCC unroll 16
    for (int row = 0; row < lanes; ++row) columns[row].v = rows[row];
}
// Four squares, of half the rows and half the columns each.
template <class T> MB_INLINE void load_turned(VecOf<T, 2>* columns, const T* pointer, i64 stride) {
    typedef T Place __attribute__((vector_size(MB_VECTOR_BYTES), aligned(8), may_alias));
#pragma GCC unroll 4
    for (int square = 0; square < 4; ++square) {
        const int right = square % 2 * half_lanes, below = square / 2 * half_lanes;
        Native<T> rows[half_lanes];
#pragma GCC unroll 8
        for (int row = 0; row < half_lanes; ++row) {
            rows[row] = *reinterpret_cast<const Place*>(pointer + (below + row) * stride + right);
        }
        turn_blocks<1>(rows, HalfLanes{});
#pragma GCC unroll 8
        for (int row = 0; row < half_lanes; ++row) {
            (below ? columns[right + row].high : columns[right + row].low) = rows[row];
        }
    }
}

// ---- steps of 2 and -1 --------------------------------------------------------------------------------------------

template <class V, int... lane> MB_INLINE V even_lanes(V first, V second, Sequence<lane...>) {
    return picked<(2 * lane)...>(first, second);
}
template <class V, int... lane> MB_INLINE V even_then_odd(V first, V second, Sequence<lane...>) {
    return picked<(2 * lane < lanes ? 2 * lane : 2 * lane + 1)...>(first, second);
}
template <class V, int... lane> MB_INLINE V reversed(V value, Sequence<lane...>) {
    return picked<(lanes - 1 - lane)...>(value, value);
}

// Elements 0, 2, 4...; the second load begins one early, so that it ends with the last element needed.
template <class T, class S> MB_INLINE Vec<T> load_even(const S* pointer) {
    return {even_then_odd(load<T>(pointer).v, load<T>(pointer + lanes - 1).v, AllLanes{})};
}
// Elements 0, -1, -2...
template <class T, class S> MB_INLINE Vec<T> load_backwards(const S* pointer) {
    return {reversed(load<T>(pointer - (lanes - 1)).v, AllLanes{})};
}

#if defined(MB_MASKED_REGISTERS) && defined(__BMI2__)
template <class T, class S> MB_INLINE Vec<T> load_even_bits(const S* pointer, u16 bits) {
    const u32 spread = __builtin_ia32_pdep_si(bits, 0x55555555u);
    const auto first = load_bits<S, Packed<S>>(pointer, static_cast<u16>(spread));
    const auto second = load_bits<S, Packed<S>>(pointer + lanes, static_cast<u16>(spread >> 16));
    return {even_lanes(convert_number<T>(unpack<S>(first)).v, convert_number<T>(unpack<S>(second)).v, AllLanes{})};
}
template <class T, class S> MB_INLINE Vec<T> load_even_partial(const S* pointer, i64 count) {
    return load_even_bits<T>(pointer, bits_of_count(count));
}
template <class T, class S, class Other> MB_INLINE Vec<T> load_even_masked(const S* pointer, Mask mask, Other other) {
    return select(mask, load_even_bits<T>(pointer, bits_of_mask(mask)), broadcast<T>(other));
}
#else
template <class T, class S> MB_INLINE Vec<T> load_even_partial(const S* pointer, i64 count) {
    return load_strided_partial<T>(pointer, 2, count);
}
template <class T, class S, class Other> MB_INLINE Vec<T> load_even_masked(const S* pointer, Mask mask, Other other) {
    const Vec<i64> offsets = iota<i64>(0);
    return load_gather_masked<T>(pointer, add(offsets, offsets), mask, other);
}
#endif

}  // namespace mb
