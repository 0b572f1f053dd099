// Tiles: what is computed of some rows at once, in registers.
//
// Place: above `kernel.hpp`, below the headers of templates.
#pragma once
#include "kernel.hpp"

namespace mb {

MB_INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// Keeps the compiler from loading a value again for each of its uses: products would have to wait for loads.
MB_INLINE Vec<float> in_register(Vec<float> value) {
#if defined(__AVX512F__)
    asm("" : "+v"(value.v));
#elif defined(__x86_64__)
    asm("" : "+x"(value.v));
#endif
    return value;
}

// Runs tiles of `count`, then of half as many, and so on, until `end`.
template <int count, class Tile> MB_INLINE void in_tiles(const Tile& tile, i64 end, i64 first = 0) {
    for (; first + count <= end; first += count) tile.template run<count>(first);
    if constexpr (count > 1) in_tiles<count / 2>(tile, end, first);
}

}  // namespace mb
