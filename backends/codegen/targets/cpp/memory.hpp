// Loads and stores: whole vectors, first lanes, masked, strided, gathered.
//
// Place: above `convert.hpp`. `load<T>(p)` reads elements of any storage type and converts them to `Vec<T>`;
// `store(p, v)` converts to the storage type (floats round, integers wrap).
// Invariants: no element outside `count` or the mask is touched; pointers need no alignment beyond their element's.
// Offsets and strides are in elements.
#pragma once
#include "gathered.hpp"

namespace mb {

// What an element is in memory, as a number, and `lanes` of them: one vector, or two where an element has 8 bytes.
template <class S> struct RawOf { using type = S; };
template <> struct RawOf<f16> { using type = u16; };
template <> struct RawOf<bf16> { using type = u16; };
template <class S> using Raw = typename RawOf<S>::type;

template <class S, int size> struct PackedOf {
    typedef Raw<S> type __attribute__((vector_size(MB_VECTOR_BYTES / 4 * size)));
};
template <class S> struct PackedOf<S, 8> { using type = Vec<S>; };
// The same at any address.
template <class S, int size> struct LooseOf {
    static constexpr int bytes = MB_VECTOR_BYTES / 4 * (size == 8 ? 4 : size);
    typedef Raw<S> type __attribute__((vector_size(bytes), aligned(size), may_alias));
};
template <class S> using Packed = typename PackedOf<S, sizeof(S)>::type;
template <class S> using Loose = typename LooseOf<S, sizeof(S)>::type;

template <class S> MB_INLINE Vec<Compute<S>> unpack(Packed<S> packed) {
    if constexpr (same<S, f16>) {
        return {float16_widen(packed)};
    } else if constexpr (same<S, bf16>) {
        return {bfloat16_widen<native_f32>(widen_small(packed))};
    } else if constexpr (sizeof(S) < 4) {
        return {widen_small(packed)};
    } else if constexpr (sizeof(S) == 4) {
        return {packed};
    } else {
        return packed;
    }
}

template <class S, class V> MB_INLINE Packed<S> pack(V value) {
    const Vec<Compute<S>> given = convert<Compute<S>>(value);
    if constexpr (same<S, f16>) {
        return float16_narrow(given.v);
    } else if constexpr (same<S, bf16>) {
        return bfloat16_pack(given.v);
    } else if constexpr (sizeof(S) < 4) {
        return __builtin_convertvector(given.v, Packed<S>);
    } else if constexpr (sizeof(S) == 4) {
        return given.v;
    } else {
        return given;
    }
}

// A vector whose lane `i` is `read(i)`.
template <class S, class Read> MB_INLINE Packed<S> assemble(Read read) {
    Packed<S> packed;
    if constexpr (sizeof(S) == 8) {
        for (int lane = 0; lane < half_lanes; ++lane) packed.low[lane] = read(lane);
        for (int lane = 0; lane < half_lanes; ++lane) packed.high[lane] = read(lane + half_lanes);
    } else {
        for (int lane = 0; lane < lanes; ++lane) packed[lane] = read(lane);
    }
    return packed;
}
// `write(i, lane i)` for every lane in order.
template <class S, class Write> MB_INLINE void spread(Packed<S> packed, Write write) {
    Raw<S> lane_values[lanes];
    __builtin_memcpy(lane_values, &packed, sizeof(packed));
    for (int lane = 0; lane < lanes; ++lane) write(lane, lane_values[lane]);
}
template <class S> MB_INLINE const Raw<S>* raw_pointer(const S* pointer) {
    return reinterpret_cast<const Raw<S>*>(pointer);
}
template <class S> MB_INLINE Raw<S>* raw_pointer(S* pointer) { return reinterpret_cast<Raw<S>*>(pointer); }
// 16-bit floats as what they are in memory.
template <class S> MB_INLINE const i16* bits_at(const S* pointer) { return reinterpret_cast<const i16*>(pointer); }
template <class S> MB_INLINE i16* bits_at(S* pointer) { return reinterpret_cast<i16*>(pointer); }

// `count` below `lanes` elements, in pieces of powers of two.
template <class S> MB_INLINE void copy_some(char* to, const char* from, i64 count) {
#pragma GCC unroll 4
    for (int piece = lanes / 2; piece > 0; piece /= 2) {
        if (count & piece) {
            __builtin_memcpy(to, from, piece * sizeof(S));
            to += piece * sizeof(S);
            from += piece * sizeof(S);
        }
    }
}

// ---- scalars ------------------------------------------------------------------------------------------------------

template <class T, class S> MB_INLINE T load_scalar(const S* pointer) { return convert<T>(*pointer); }
MB_INLINE bool load_flag(const u8* pointer) { return *pointer != 0; }

template <class S, class T> MB_INLINE void store_scalar(S* pointer, T value) {
    if constexpr (same<S, f16> || same<S, bf16>) {
        *pointer = narrow<S>(static_cast<float>(value));
    } else {
        *pointer = static_cast<S>(convert<S>(value));
    }
}

// ---- loads --------------------------------------------------------------------------------------------------------

template <class T, class S> MB_INLINE Vec<T> load(const S* pointer) {
    const Loose<S>* place = reinterpret_cast<const Loose<S>*>(pointer);
    if constexpr (sizeof(S) == 8) {
        return convert_number<T>(Vec<S>{place[0], place[1]});
    } else {
        return convert_number<T>(unpack<S>(*place));
    }
}

template <class T, class S> MB_INLINE Vec<T> load_partial(const S* pointer, i64 count) {
#ifdef MB_MASKED_REGISTERS
    return convert_number<T>(unpack<S>(load_bits<S, Packed<S>>(pointer, bits_of_count(count))));
#endif
#if defined(__AVX2__) && !defined(__clang__)
    constexpr bool masked = sizeof(S) >= 4;
#else
    constexpr bool masked = false;
#endif
    if constexpr (masked) {
        const i32 limit = static_cast<i32>(count > lanes ? lanes : count);
        const Packed<S> packed =
            assemble<S>([=](int lane) { return lane < limit ? raw_pointer(pointer)[lane] : Raw<S>(0); });
        return convert_number<T>(unpack<S>(packed));
    } else {
        if (count >= lanes) return load<T>(pointer);
        Packed<S> packed = {};
        copy_some<S>(reinterpret_cast<char*>(&packed), reinterpret_cast<const char*>(pointer), count);
        return convert_number<T>(unpack<S>(packed));
    }
}

template <class T, class S, class Other> MB_INLINE Vec<T> load_masked(const S* pointer, Mask mask, Other other) {
#ifdef MB_MASKED_REGISTERS
    const auto packed = load_bits<S, Packed<S>>(pointer, bits_of_mask(mask));
#else
    const Packed<S> packed =
        assemble<S>([=](int lane) { return mask.v[lane] ? raw_pointer(pointer)[lane] : Raw<S>(0); });
#endif
    return choose<T>(mask, convert_number<T>(unpack<S>(packed)), broadcast<T>(other));
}

template <class T, class S> MB_INLINE Vec<T> load_strided(const S* pointer, i64 stride) {
    const Packed<S> packed = assemble<S>([=](int lane) { return raw_pointer(pointer)[lane * stride]; });
    return convert_number<T>(unpack<S>(packed));
}
template <class T, class S> MB_INLINE Vec<T> load_strided_partial(const S* pointer, i64 stride, i64 count) {
#ifdef MB_GATHERED_REGISTERS
    const Vec<i64> places = iota<i64>(0);
    const Vec<i64> offsets = {places.low * stride, places.high * stride};
    return convert_number<T>(unpack<S>(gather_bits<S, Packed<S>>(pointer, offsets, bits_of_count(count))));
#endif
    const Packed<S> packed =
        assemble<S>([=](int lane) { return lane < count ? raw_pointer(pointer)[lane * stride] : Raw<S>(0); });
    return convert_number<T>(unpack<S>(packed));
}

template <class T, class S> MB_INLINE Vec<T> load_gather(const S* pointer, Vec<i64> offsets) {
#ifdef MB_GATHERED_REGISTERS
    return convert_number<T>(unpack<S>(gather_bits<S, Packed<S>>(pointer, offsets, 0xffff)));
#endif
    const Raw<S>* from = raw_pointer(pointer);
    Packed<S> packed;
    if constexpr (sizeof(S) == 4) {
        typedef S Half __attribute__((vector_size(MB_VECTOR_BYTES / 2)));
        Half low, high;
        for (int lane = 0; lane < half_lanes; ++lane) low[lane] = from[offsets.low[lane]];
        for (int lane = 0; lane < half_lanes; ++lane) high[lane] = from[offsets.high[lane]];
        packed = join<Packed<S>>(low, high);
    } else {
        packed = assemble<S>([=](int lane) { return from[lane_of(offsets, lane)]; });
    }
    return convert_number<T>(unpack<S>(packed));
}
template <class T, class S, class Other>
MB_INLINE Vec<T> load_gather_masked(const S* pointer, Vec<i64> offsets, Mask mask, Other other) {
#ifdef MB_GATHERED_REGISTERS
    const auto packed = gather_bits<S, Packed<S>>(pointer, offsets, bits_of_mask(mask));
#else
    const Packed<S> packed =
        assemble<S>([=](int lane) { return mask.v[lane] ? raw_pointer(pointer)[lane_of(offsets, lane)] : Raw<S>(0); });
#endif
    return choose<T>(mask, convert_number<T>(unpack<S>(packed)), broadcast<T>(other));
}
template <class T, class S> MB_INLINE Vec<T> load_gather_partial(const S* pointer, Vec<i64> offsets, i64 count) {
    return load_gather_masked<T>(pointer, offsets, first_lanes(count), 0);
}

// ---- stores -------------------------------------------------------------------------------------------------------

template <class S, class V> MB_INLINE void store(S* pointer, V value) {
    const Packed<S> packed = pack<S>(value);
    Loose<S>* place = reinterpret_cast<Loose<S>*>(pointer);
    if constexpr (sizeof(S) == 8) {
        place[0] = packed.low;
        place[1] = packed.high;
    } else {
        *place = packed;
    }
}
template <class S, class V> MB_INLINE void store_partial(S* pointer, V value, i64 count) {
#ifdef MB_MASKED_REGISTERS
    return store_bits(pointer, pack<S>(value), bits_of_count(count));
#endif
    if (count >= lanes) return store(pointer, value);
    const Packed<S> packed = pack<S>(value);
    copy_some<S>(reinterpret_cast<char*>(pointer), reinterpret_cast<const char*>(&packed), count);
}
template <class S, class V> MB_INLINE void store_masked(S* pointer, V value, Mask mask) {
#ifdef MB_MASKED_REGISTERS
    return store_bits(pointer, pack<S>(value), bits_of_mask(mask));
#endif
    spread<S>(pack<S>(value), [=](int lane, Raw<S> element) {
        if (mask.v[lane]) raw_pointer(pointer)[lane] = element;
    });
}
template <class S, class V> MB_INLINE void store_strided(S* pointer, i64 stride, V value) {
    spread<S>(pack<S>(value), [=](int lane, Raw<S> element) { raw_pointer(pointer)[lane * stride] = element; });
}
template <class S, class V> MB_INLINE void store_strided_partial(S* pointer, i64 stride, V value, i64 count) {
    spread<S>(pack<S>(value), [=](int lane, Raw<S> element) {
        if (lane < count) raw_pointer(pointer)[lane * stride] = element;
    });
}
template <class S, class V> MB_INLINE void store_strided_masked(S* pointer, i64 stride, V value, Mask mask) {
    spread<S>(pack<S>(value), [=](int lane, Raw<S> element) {
        if (mask.v[lane]) raw_pointer(pointer)[lane * stride] = element;
    });
}
// One lane after the other: where two offsets are equal the later lane stays.
template <class S, class V> MB_INLINE void scatter_lanes(S* pointer, Vec<i64> offsets, V value, i64 count) {
    spread<S>(pack<S>(value), [=](int lane, Raw<S> element) {
        if (lane < count) raw_pointer(pointer)[lane_of(offsets, lane)] = element;
    });
}
template <class S, class V> MB_INLINE void scatter_masked(S* pointer, Vec<i64> offsets, V value, Mask mask) {
    spread<S>(pack<S>(value), [=](int lane, Raw<S> element) {
        if (mask.v[lane]) raw_pointer(pointer)[lane_of(offsets, lane)] = element;
    });
}

// ---- bool: a byte each, anything but zero is true -----------------------------------------------------------------

MB_INLINE Mask load_mask(const u8* pointer) { return nonzero(load<i32>(pointer)); }
MB_INLINE Mask load_mask_partial(const u8* pointer, i64 count) { return nonzero(load_partial<i32>(pointer, count)); }
MB_INLINE Mask load_mask_masked(const u8* pointer, Mask mask, bool other) {
    return nonzero(load_masked<i32>(pointer, mask, other));
}
MB_INLINE Mask load_mask_strided(const u8* pointer, i64 stride) { return nonzero(load_strided<i32>(pointer, stride)); }
MB_INLINE Mask load_mask_strided_partial(const u8* pointer, i64 stride, i64 count) {
    return nonzero(load_strided_partial<i32>(pointer, stride, count));
}
MB_INLINE Mask load_mask_gather(const u8* pointer, Vec<i64> offsets) {
    return nonzero(load_gather<i32>(pointer, offsets));
}
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
MB_INLINE void store_mask_strided(u8* pointer, i64 stride, Mask value) {
    store_strided(pointer, stride, ones_of(value));
}
MB_INLINE void store_mask_strided_partial(u8* pointer, i64 stride, Mask value, i64 count) {
    store_strided_partial(pointer, stride, ones_of(value), count);
}
MB_INLINE void scatter_mask_lanes(u8* pointer, Vec<i64> offsets, Mask value, i64 count) {
    scatter_lanes(pointer, offsets, ones_of(value), count);
}

}  // namespace mb
