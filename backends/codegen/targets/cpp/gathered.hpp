// Gathers of registers, where the processor has them: AVX-512.
//
// Place: between `masked.hpp` and `memory.hpp`, which goes lane by lane without them.
// Elements below 4 bytes are cut out of the aligned words of 4 bytes they lie in: such a word never crosses a page, so
// nothing outside the memory of the process is touched.
// Invariants: a lane whose bit is unset is not read; it gets zero. Offsets are in elements.
#pragma once
#include "masked.hpp"

#ifdef MB_MASKED_REGISTERS
#define MB_GATHERED_REGISTERS 1

namespace mb {

// Sixteen words of 4 bytes.
MB_INLINE native_i32 gather_words(const void* pointer, Vec<i64> offsets, u16 bits) {
    const half_i32 low = __builtin_ia32_gatherdiv16si(half_i32{}, pointer, offsets.low, static_cast<u8>(bits), 4);
    const half_i32 high = __builtin_ia32_gatherdiv16si(half_i32{}, pointer, offsets.high, static_cast<u8>(bits >> 8), 4);
    return join<native_i32>(low, high);
}
MB_INLINE native_i64 gather_wide_words(const void* pointer, native_i64 offsets, u16 bits) {
    return __builtin_ia32_gatherdiv8di(native_i64{}, pointer, offsets, static_cast<u8>(bits), 8);
}

// `Packed` is what `lanes` elements of type S are in registers.
template <class S, class Packed> MB_INLINE Packed gather_bits(const S* pointer, Vec<i64> offsets, u16 bits) {
    if constexpr (sizeof(S) == 8) {
        return {bit_cast<Native<S>>(gather_wide_words(pointer, offsets.low, bits)),
                bit_cast<Native<S>>(gather_wide_words(pointer, offsets.high, bits >> 8))};
    } else if constexpr (sizeof(S) == 4) {
        return bit_cast<Packed>(gather_words(pointer, offsets, bits));
    } else {
        constexpr int count = 4 / sizeof(S), power = sizeof(S) == 2 ? 1 : 2;
        const u64 address = reinterpret_cast<u64>(pointer);
        const i64 ahead = static_cast<i64>(address % 4 / sizeof(S));
        const Vec<i64> places = {offsets.low + ahead, offsets.high + ahead};
        const native_i32 place =
            join<native_i32>(__builtin_convertvector(places.low, half_i32), __builtin_convertvector(places.high, half_i32));
        const native_i32 words =
            gather_words(reinterpret_cast<const void*>(address - address % 4), {places.low >> power, places.high >> power}, bits);
        const native_i32 parts = words >> ((place & (count - 1)) * static_cast<int>(8 * sizeof(S)));
        return __builtin_convertvector(parts, Packed);
    }
}

}  // namespace mb
#endif
