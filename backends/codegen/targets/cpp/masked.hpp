// Masked accesses of registers, where the processor has them for every size of element: AVX-512.
//
// Place: between `convert.hpp` and `memory.hpp`, which goes lane by lane without them.
// Invariants: a lane whose bit is unset is neither read nor written; loads give it zero.
#pragma once
#include "convert.hpp"

#if MB_VECTOR_BYTES == 64 && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && !defined(__clang__)
#define MB_MASKED_REGISTERS 1

namespace mb {

typedef char packed_char __attribute__((vector_size(16)));

MB_INLINE u16 bits_of_mask(Mask mask) { return __builtin_ia32_cvtd2mask512(mask.v); }
MB_INLINE u16 bits_of_count(i64 count) { return static_cast<u16>(count >= lanes ? 0xffff : (1u << count) - 1u); }

// Sixteen elements of 1, 2 or 4 bytes; `To` is a vector of them.
template <class To> MB_INLINE To load_register(const void* pointer, u16 bits) {
    if constexpr (sizeof(To) == 16) {
        return bit_cast<To>(__builtin_ia32_loaddquqi128_mask(static_cast<const char*>(pointer), packed_char{}, bits));
    } else if constexpr (sizeof(To) == 32) {
        return bit_cast<To>(__builtin_ia32_loaddquhi256_mask(static_cast<const i16*>(pointer), packed_i16{}, bits));
    } else {
        return bit_cast<To>(__builtin_ia32_loaddqusi512_mask(static_cast<const i32*>(pointer), native_i32{}, bits));
    }
}
template <class From> MB_INLINE void store_register(void* pointer, From value, u16 bits) {
    if constexpr (sizeof(From) == 16) {
        __builtin_ia32_storedquqi128_mask(static_cast<char*>(pointer), bit_cast<packed_char>(value), bits);
    } else if constexpr (sizeof(From) == 32) {
        __builtin_ia32_storedquhi256_mask(static_cast<i16*>(pointer), bit_cast<packed_i16>(value), bits);
    } else {
        __builtin_ia32_storedqusi512_mask(static_cast<i32*>(pointer), bit_cast<native_i32>(value), bits);
    }
}
// Eight elements of 8 bytes.
template <class To> MB_INLINE To load_wide_register(const void* pointer, u16 bits) {
    const auto place = static_cast<const i64*>(pointer);
    return bit_cast<To>(__builtin_ia32_loaddqudi512_mask(place, native_i64{}, static_cast<u8>(bits)));
}
template <class From> MB_INLINE void store_wide_register(void* pointer, From value, u16 bits) {
    const auto place = static_cast<i64*>(pointer);
    __builtin_ia32_storedqudi512_mask(place, bit_cast<native_i64>(value), static_cast<u8>(bits));
}

// `Packed` is what `lanes` elements of type S are in registers.
template <class S, class Packed> MB_INLINE Packed load_bits(const S* pointer, u16 bits) {
    if constexpr (sizeof(S) == 8) {
        using Half = Native<S>;
        return {load_wide_register<Half>(pointer, bits), load_wide_register<Half>(pointer + half_lanes, bits >> 8)};
    } else {
        return load_register<Packed>(pointer, bits);
    }
}
template <class S, class Packed> MB_INLINE void store_bits(S* pointer, Packed packed, u16 bits) {
    if constexpr (sizeof(S) == 8) {
        store_wide_register(pointer, packed.low, bits);
        store_wide_register(pointer + half_lanes, packed.high, bits >> 8);
    } else {
        store_register(pointer, packed, bits);
    }
}

}  // namespace mb
#endif
