// Loads and stores: whole vectors, first lanes, masked, strided, gathered.
//
// Place: above `convert.hpp`. `load<T>(p)` reads elements of any storage type and converts them to `Vec<T>`; `store(p, v)`
// converts to the storage type (floats round, integers wrap).
// Invariants: no element outside `count` or the mask is touched; pointers need no alignment beyond their element's.
// Offsets and strides are in elements.
#pragma once
#include "convert.hpp"

namespace mb {

// Elements on their way between memory and a vector: `lanes` of them, converted as one.
template <class S> struct Packed {
    S lane[lanes];
};

template <class S> MB_INLINE Vec<Compute<S>> unpack(const Packed<S>& packed) {
    if constexpr (same<S, f16>) {
        return {float16_widen(bit_cast<packed_u16>(packed))};
    } else if constexpr (same<S, bf16>) {
        return {bfloat16_widen<native_f32>(__builtin_convertvector(bit_cast<packed_u16>(packed), native_i32))};
    } else if constexpr (same<S, i8>) {
        return {__builtin_convertvector(bit_cast<packed_i8>(packed), native_i32)};
    } else if constexpr (same<S, u8>) {
        return {__builtin_convertvector(bit_cast<packed_u8>(packed), native_i32)};
    } else if constexpr (same<S, i16>) {
        return {__builtin_convertvector(bit_cast<packed_i16>(packed), native_i32)};
    } else {
        return bit_cast<Vec<S>>(packed);
    }
}

template <class S, class T> MB_INLINE Packed<S> pack(Vec<T> value) {
    const Vec<Compute<S>> given = convert_number<Compute<S>>(value);
    if constexpr (same<S, f16>) {
        return bit_cast<Packed<S>>(float16_narrow(given.v));
    } else if constexpr (same<S, bf16>) {
        return bit_cast<Packed<S>>(__builtin_convertvector(bfloat16_narrow(given.v), packed_u16));
    } else if constexpr (sizeof(S) == 1) {
        return bit_cast<Packed<S>>(__builtin_convertvector(given.v, packed_i8));
    } else if constexpr (sizeof(S) == 2) {
        return bit_cast<Packed<S>>(__builtin_convertvector(given.v, packed_i16));
    } else {
        return bit_cast<Packed<S>>(given);
    }
}

template <class S> MB_INLINE S zero_of() {
    S result;
    __builtin_memset(&result, 0, sizeof(S));
    return result;
}

// ---- scalars -----------------------------------------------------------------------------------------------------------

template <class T, class S> MB_INLINE T load_scalar(const S* pointer) { return convert<T>(*pointer); }
MB_INLINE bool load_flag(const u8* pointer) { return *pointer != 0; }

template <class S, class T> MB_INLINE void store_scalar(S* pointer, T value) {
    if constexpr (same<S, f16> || same<S, bf16>) {
        *pointer = narrow<S>(static_cast<float>(value));
    } else {
        *pointer = static_cast<S>(convert<S>(value));
    }
}

// ---- loads ---------------------------------------------------------------------------------------------------------------

template <class T, class S> MB_INLINE Vec<T> load(const S* pointer) {
    Packed<S> packed;
    __builtin_memcpy(&packed, pointer, sizeof(packed));
    return convert_number<T>(unpack(packed));
}

template <class T, class S> MB_INLINE Vec<T> load_partial(const S* pointer, i64 count) {
    Packed<S> packed;
    for (int lane = 0; lane < lanes; ++lane) packed.lane[lane] = lane < count ? pointer[lane] : zero_of<S>();
    return convert_number<T>(unpack(packed));
}

template <class T> MB_INLINE Vec<T> choose(Mask mask, Vec<T> a, Vec<T> b) {
    if constexpr (sizeof(T) == 4) {
        return {mask.v ? a.v : b.v};
    } else {
        const Vec<i64> wide = convert_number<i64>(Vec<i32>{mask.v});
        return {wide.low ? a.low : b.low, wide.high ? a.high : b.high};
    }
}

template <class T, class S, class Other> MB_INLINE Vec<T> load_masked(const S* pointer, Mask mask, Other other) {
    Packed<S> packed;
    for (int lane = 0; lane < lanes; ++lane) packed.lane[lane] = mask.v[lane] ? pointer[lane] : zero_of<S>();
    return choose<T>(mask, convert_number<T>(unpack(packed)), broadcast<T>(other));
}

template <class T, class S> MB_INLINE Vec<T> load_strided(const S* pointer, i64 stride) {
    Packed<S> packed;
    for (int lane = 0; lane < lanes; ++lane) packed.lane[lane] = pointer[lane * stride];
    return convert_number<T>(unpack(packed));
}
template <class T, class S> MB_INLINE Vec<T> load_strided_partial(const S* pointer, i64 stride, i64 count) {
    Packed<S> packed;
    for (int lane = 0; lane < lanes; ++lane) {
        packed.lane[lane] = lane < count ? pointer[lane * stride] : zero_of<S>();
    }
    return convert_number<T>(unpack(packed));
}

template <class T, class S> MB_INLINE Vec<T> load_gather(const S* pointer, Vec<i64> offsets) {
    Packed<S> packed;
    for (int lane = 0; lane < half_lanes; ++lane) packed.lane[lane] = pointer[offsets.low[lane]];
    for (int lane = 0; lane < half_lanes; ++lane) packed.lane[lane + half_lanes] = pointer[offsets.high[lane]];
    return convert_number<T>(unpack(packed));
}
template <class T, class S, class Other>
MB_INLINE Vec<T> load_gather_masked(const S* pointer, Vec<i64> offsets, Mask mask, Other other) {
    Packed<S> packed;
    for (int lane = 0; lane < lanes; ++lane) {
        packed.lane[lane] = mask.v[lane] ? pointer[lane_of(offsets, lane)] : zero_of<S>();
    }
    return choose<T>(mask, convert_number<T>(unpack(packed)), broadcast<T>(other));
}
template <class T, class S> MB_INLINE Vec<T> load_gather_partial(const S* pointer, Vec<i64> offsets, i64 count) {
    return load_gather_masked<T>(pointer, offsets, first_lanes(count), 0);
}

// ---- stores --------------------------------------------------------------------------------------------------------------

template <class S, class V> MB_INLINE void store(S* pointer, V value) {
    const auto packed = pack<S>(value);
    __builtin_memcpy(pointer, &packed, sizeof(packed));
}
template <class S, class V> MB_INLINE void store_partial(S* pointer, V value, i64 count) {
    const auto packed = pack<S>(value);
    for (int lane = 0; lane < lanes; ++lane) {
        if (lane < count) pointer[lane] = packed.lane[lane];
    }
}
template <class S, class V> MB_INLINE void store_masked(S* pointer, V value, Mask mask) {
    const auto packed = pack<S>(value);
    for (int lane = 0; lane < lanes; ++lane) {
        if (mask.v[lane]) pointer[lane] = packed.lane[lane];
    }
}
template <class S, class V> MB_INLINE void store_strided(S* pointer, i64 stride, V value) {
    const auto packed = pack<S>(value);
    for (int lane = 0; lane < lanes; ++lane) pointer[lane * stride] = packed.lane[lane];
}
template <class S, class V> MB_INLINE void store_strided_partial(S* pointer, i64 stride, V value, i64 count) {
    const auto packed = pack<S>(value);
    for (int lane = 0; lane < lanes; ++lane) {
        if (lane < count) pointer[lane * stride] = packed.lane[lane];
    }
}
template <class S, class V> MB_INLINE void store_strided_masked(S* pointer, i64 stride, V value, Mask mask) {
    const auto packed = pack<S>(value);
    for (int lane = 0; lane < lanes; ++lane) {
        if (mask.v[lane]) pointer[lane * stride] = packed.lane[lane];
    }
}
// One lane after the other: where two offsets are equal the later lane stays.
template <class S, class V> MB_INLINE void scatter_lanes(S* pointer, Vec<i64> offsets, V value, i64 count) {
    const auto packed = pack<S>(value);
    for (int lane = 0; lane < lanes; ++lane) {
        if (lane < count) pointer[lane_of(offsets, lane)] = packed.lane[lane];
    }
}
template <class S, class V> MB_INLINE void scatter_masked(S* pointer, Vec<i64> offsets, V value, Mask mask) {
    const auto packed = pack<S>(value);
    for (int lane = 0; lane < lanes; ++lane) {
        if (mask.v[lane]) pointer[lane_of(offsets, lane)] = packed.lane[lane];
    }
}

// ---- bool: a byte each, anything but zero is true ------------------------------------------------------------------------

MB_INLINE Mask load_mask(const u8* pointer) { return nonzero(load<i32>(pointer)); }
MB_INLINE Mask load_mask_partial(const u8* pointer, i64 count) { return nonzero(load_partial<i32>(pointer, count)); }
MB_INLINE Mask load_mask_masked(const u8* pointer, Mask mask, bool other) {
    return nonzero(load_masked<i32>(pointer, mask, other));
}
MB_INLINE Mask load_mask_strided(const u8* pointer, i64 stride) { return nonzero(load_strided<i32>(pointer, stride)); }
MB_INLINE Mask load_mask_strided_partial(const u8* pointer, i64 stride, i64 count) {
    return nonzero(load_strided_partial<i32>(pointer, stride, count));
}
MB_INLINE Mask load_mask_gather(const u8* pointer, Vec<i64> offsets) { return nonzero(load_gather<i32>(pointer, offsets)); }
MB_INLINE Mask load_mask_gather_partial(const u8* pointer, Vec<i64> offsets, i64 count) {
    return nonzero(load_gather_partial<i32>(pointer, offsets, count));
}
MB_INLINE Mask load_mask_gather_masked(const u8* pointer, Vec<i64> offsets, Mask mask, bool other) {
    return nonzero(load_gather_masked<i32>(pointer, offsets, mask, other));
}

MB_INLINE Vec<i32> ones_of(Mask mask) { return {-mask.v}; }
MB_INLINE void store_mask(u8* pointer, Mask value) { store(pointer, ones_of(value)); }
MB_INLINE void store_mask_partial(u8* pointer, Mask value, i64 count) { store_partial(pointer, ones_of(value), count); }
MB_INLINE void store_mask_masked(u8* pointer, Mask value, Mask mask) { store_masked(pointer, ones_of(value), mask); }
MB_INLINE void store_mask_strided(u8* pointer, i64 stride, Mask value) { store_strided(pointer, stride, ones_of(value)); }
MB_INLINE void store_mask_strided_partial(u8* pointer, i64 stride, Mask value, i64 count) {
    store_strided_partial(pointer, stride, ones_of(value), count);
}
MB_INLINE void scatter_mask_lanes(u8* pointer, Vec<i64> offsets, Mask value, i64 count) {
    scatter_lanes(pointer, offsets, ones_of(value), count);
}

}  // namespace mb
