// Products with weights in groups: codes of 8 or 4 bits, each group of terms of a column with a scale and an offset.
//
// Place: above `product_tiles.hpp`, below `product.hpp`, which cuts products. A weight is `code * scale + offset`.
// Method: few rows sum up `x * code` of a group in registers, and scale that sum once: they read codes as they are
// stored, and wait for memory alone. Of more rows a block of terms is made floats in the first-level cache, which all
// rows read.
// Codes of 4 bits lie eight in 32 bits, terms one after the other; a group has whole ones, unless it is the last.
// They are numbers from -8 on: where registers hold a table of 16 floats, one instruction makes floats of them.
// Invariants: sums are float32; codes beyond the terms are not multiplied.
#pragma once
#include "product_tiles.hpp"

namespace mb {

// Eight codes of 4 bits.
struct nibbles {
    u32 bits;
};

template <class Stored> struct GroupedProduct : Product {
    const Stored* packed;
    // Of each panel one row for every group; null where all offsets are 0.
    const float* scales;
    const float* offsets;
    i64 group;

    MB_INLINE_MEMBER i64 groups() const { return (terms + group - 1) / group; }
    MB_INLINE_MEMBER i64 panel_bytes(i64 width) const { return terms * width; }
};

namespace product {

constexpr int nibbles_together = 8, lowest_nibble = -8;
template <class Stored> constexpr int codes_of = 1;
template <> constexpr int codes_of<nibbles> = nibbles_together;
// So many rows read codes themselves; more of them share floats.
constexpr i64 rows_of_codes = 4;
// Sums of so many terms are made apart from those before them, which would round each to their own size.
constexpr i64 terms_apart = 256;
static_assert(terms_apart % nibbles_together == 0);
// So far ahead codes are asked for into the second-level cache.
constexpr i64 far_bytes = 16 * 1024;

// Codes of one element of a panel's row, as floats.
template <class Stored> struct Codes {
    Vec<float> values;

    MB_INLINE_MEMBER static Codes at(const Stored* place) { return {load<float>(place)}; }
    MB_INLINE_MEMBER Vec<float> get(int) const { return values; }
};
template <> struct Codes<nibbles> {
    native_u32 words;

    MB_INLINE_MEMBER static Codes at(const nibbles* place) {
        return {bit_cast<native_u32>(load<i32>(reinterpret_cast<const i32*>(place)).v)};
    }
    MB_INLINE_MEMBER Vec<float> get(int number) const {
        const native_i32 shifted = bit_cast<native_i32>(words >> static_cast<u32>(4 * number));
#if defined(MB_WIDE_BUILTINS)
        const native_f32 table = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
        return {__builtin_ia32_permvarsf512_mask(table, shifted, native_f32{}, -1)};
#else
        return {__builtin_convertvector((shifted & 15) + lowest_nibble, native_f32)};
#endif
    }
};

// Some rows of a panel, which read codes as they are stored.
template <int vectors, Columns kind, class Ending, class Stored> struct GroupTile {
    static constexpr i64 width = vectors * lanes;
    const Tile<vectors, kind, Ending, float>& ending;
    const GroupedProduct<Stored>& given;
    i64 number;

    template <int count> using Sums = Vec<float>[count][vectors];

    template <int count> MB_INLINE_MEMBER void run(i64 first_row) const {
        const float* left[count];
        float* output[count];
        Row row = Row::at(given, first_row);
#pragma GCC unroll 8
        for (int member = 0; member < count; ++member, row.next(given)) {
            left[member] = row.of(given.left);
            output[member] = row.of(given.output);
        }
        Sums<count> sums;
        ending.template begin<count>(sums);
        const Stored* right = given.packed + number * ((given.terms + codes_of<Stored> - 1) / codes_of<Stored>)*width;
        for (i64 first = 0; first < given.terms; first += terms_apart) {
            const i64 end = least(given.terms, first + terms_apart);
            if (given.offsets == nullptr) {
                right = add_groups<count, false>(sums, left, first, end, right);
            } else {
                right = add_groups<count, true>(sums, left, first, end, right);
            }
        }
        ending.template end<count>(sums, first_row, output);
    }

    // Adds groups, or what is there of them, whose sums are added up by themselves.
    template <int count, bool shifted>
    MB_INLINE_MEMBER const Stored* add_groups(
        Sums<count>& sums, const float* const (&left)[count], i64 term, i64 end, const Stored* right
    ) const {
        Sums<count> apart = {};
        while (term < end) {
            const i64 group = term / given.group, last = least(end, (group + 1) * given.group);
            const i64 place = (number * given.groups() + group) * width;
            right = add_group<count, shifted>(apart, left, term, last - term, right, place);
            term = last;
        }
#pragma GCC unroll 8
        for (int member = 0; member < count; ++member) {
#pragma GCC unroll 4
            for (int column = 0; column < vectors; ++column) {
                sums[member][column] = add(sums[member][column], apart[member][column]);
            }
        }
        return right;
    }

    // Adds the scaled sums of a group: two chains of them for one row, whose sums would wait for each other.
    template <int count, bool shifted>
    MB_INLINE_MEMBER const Stored* add_group(
        Sums<count>& sums, const float* const (&left)[count], i64 term, i64 terms, const Stored* right, i64 place
    ) const {
        constexpr int chains = count == 1 ? 2 : 1, together = codes_of<Stored>;
        constexpr int rows = together == 1 ? chains : 1;
        Sums<count> own[chains] = {};
        Vec<float> total[count] = {};
        const auto add_term = [&](const Codes<Stored>(&codes)[vectors], int code, i64 offset, Sums<count>& mine) {
#pragma GCC unroll 8
            for (int member = 0; member < count; ++member) {
                const Vec<float> factor = broadcast<float>(left[member][offset]);
                if constexpr (shifted) total[member] = add(total[member], factor);
#pragma GCC unroll 4
                for (int column = 0; column < vectors; ++column) {
                    mine[member][column] = add(mine[member][column], mul(factor, codes[column].get(code)));
                }
            }
        };
        i64 offset = term * given.left.column;
        i64 done = 0;
        for (; done + rows * together <= terms; done += rows * together) {
#pragma GCC unroll 2
            for (int chain = 0; chain < rows; ++chain) {
                right = with_codes(right, [&](const Codes<Stored>(&codes)[vectors]) {
#pragma GCC unroll 8
                    for (int code = 0; code < together; ++code, offset += given.left.column) {
                        add_term(codes, code, offset, own[(together == 1 ? chain : code) % chains]);
                    }
                });
            }
        }
        while (done < terms) {
            right = with_codes(right, [&](const Codes<Stored>(&codes)[vectors]) {
                for (int code = 0; code < together && done < terms; ++code, ++done, offset += given.left.column) {
                    add_term(codes, code, offset, own[0]);
                }
            });
        }
#pragma GCC unroll 4
        for (int column = 0; column < vectors; ++column) {
            const Vec<float> scale = load<float>(given.scales + place + column * lanes);
#pragma GCC unroll 8
            for (int member = 0; member < count; ++member) {
                Vec<float> made = own[0][member][column];
                if constexpr (chains > 1) made = add(made, own[1][member][column]);
                sums[member][column] = add(sums[member][column], mul(made, scale));
                if constexpr (shifted) {
                    const Vec<float> shift = load<float>(given.offsets + place + column * lanes);
                    sums[member][column] = add(sums[member][column], mul(total[member], shift));
                }
            }
        }
        return right;
    }

    // One row of a panel, for a function; what comes soon is asked for.
    template <class Function> MB_INLINE_MEMBER const Stored* with_codes(const Stored* right, Function function) const {
        constexpr i64 bytes = width * static_cast<i64>(sizeof(Stored));
        const char* const place = reinterpret_cast<const char*>(right);
#pragma GCC unroll 4
        for (i64 byte = 0; byte < bytes; byte += line_bytes) {
            __builtin_prefetch(place + far_bytes + byte, 0, 2);
            __builtin_prefetch(place + near_bytes + byte, 0, 3);
        }
        Codes<Stored> codes[vectors];
#pragma GCC unroll 4
        for (int column = 0; column < vectors; ++column) codes[column] = Codes<Stored>::at(right + column * lanes);
        function(codes);
        return right + width;
    }
};

// Floats of some terms of a panel.
template <int vectors, class Stored>
static __attribute__((noinline)) void widen_terms(
    const GroupedProduct<Stored>& given, i64 number, i64 first, i64 end, float* floats
) {
    constexpr i64 width = vectors * lanes;
    constexpr int together = codes_of<Stored>;
    const i64 words = (given.terms + together - 1) / together;
    for (i64 term = first; term < end;) {
        const i64 group = term / given.group, last = least(end, (group + 1) * given.group);
        const i64 place = (number * given.groups() + group) * width;
        while (term < last) {
            const Stored* const from = given.packed + (number * words + term / together) * width;
            const int begin = static_cast<int>(term % together);
            const int count = static_cast<int>(least(together - begin, last - term));
#pragma GCC unroll 4
            for (int column = 0; column < vectors; ++column) {
                const Codes<Stored> codes = Codes<Stored>::at(from + column * lanes);
                const Vec<float> scale = load<float>(given.scales + place + column * lanes);
                const Vec<float> shift = given.offsets == nullptr ? broadcast<float>(0.0f)
                                                                  : load<float>(given.offsets + place + column * lanes);
                for (int code = 0; code < count; ++code) {
                    const Vec<float> value = add(mul(codes.get(begin + code), scale), shift);
                    store(floats + code * width + column * lanes, value);
                }
            }
            floats += count * width;
            term += count;
        }
    }
}

}  // namespace product

}  // namespace mb
