// Products of matrices as one kernel: left packed + bias, where the right matrix was packed when it became known.
//
// Place: above `tiles.hpp`; included by functions of the template `product`. Input: the left matrix in any strides; the
// right one in panels of neighbouring columns, row after row, so that what a tile reads lies one after the other.
// Method (Goto and van de Geijn, 2008): a tile of rows and one panel of columns stays in registers while a block of terms
// is summed up; the block of the panel stays in the first-level cache while all rows pass. The left matrix is read where
// it lies, one number for all lanes. Each tile asks for its share of the next block, and for the rows of the next tile:
// without that a product of few rows waits for its weight.
// Invariants: everything is float32. Columns beyond the last, which the packed matrix has as zeros, are not written.
#pragma once
#include "tiles.hpp"

namespace mb {

struct Product {
    i64 batches, rows, terms, columns;
    const float* left;
    i64 left_batch, left_row, left_term;
    const float* packed;
    const float* bias;  // null where there is none
    i64 bias_column;
    float* output;
    i64 output_batch, output_row, output_column;
};

namespace product {

// Terms that are summed up before a tile goes back to memory: such a block of a panel fills half of the first-level cache.
constexpr i64 term_block = 128;
// Rows that pass a panel before the next one comes, and such pieces that there should be at least.
constexpr i64 row_block = 384;
constexpr i64 least_row_block = 32;
constexpr i64 least_points = 16;
constexpr i64 line_bytes = 64;
constexpr i64 line_terms = line_bytes / sizeof(float);

// Rows of a tile: they, one row of a panel and a number fill the registers.
constexpr int tile_rows(int vectors) {
    constexpr int registers = MB_VECTOR_BYTES == 64 ? 32 : 16;
    return (registers - 1 - vectors) / vectors >= 8 ? 8 : (registers - 1 - vectors) / vectors >= 6 ? 6 : 4;
}

MB_INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }

// A panel of columns of the result. Only `whole` ones can be written a register at a time.
template <int vectors, bool whole> struct Panel {
    const Product& given;
    i64 first, columns;

    MB_INLINE_MEMBER i64 left_over(int place) const { return most(0, least(columns - place * lanes, lanes)); }
    MB_INLINE_MEMBER float* at(i64 row, int place) const {
        return given.output + row * given.output_row + (first + place * lanes) * given.output_column;
    }
    MB_INLINE_MEMBER Vec<float> start(int place) const {
        if (given.bias == nullptr) return broadcast<float>(0.0f);
        const float* const there = given.bias + (first + place * lanes) * given.bias_column;
        return load_strided_partial<float>(there, given.bias_column, left_over(place));
    }
    MB_INLINE_MEMBER Vec<float> get(i64 row, int place) const {
        if constexpr (whole) return load<float>(at(row, place));
        return load_strided_partial<float>(at(row, place), given.output_column, left_over(place));
    }
    MB_INLINE_MEMBER void put(i64 row, int place, Vec<float> value) const {
        if constexpr (whole) {
            store(at(row, place), value);
        } else {
            store_strided_partial(at(row, place), given.output_column, value, left_over(place));
        }
    }
};

// Adds the terms of one block to some rows of a panel.
template <int vectors, bool whole> struct Tile {
    const Panel<vectors, whole>& panel;
    const float* packed;
    i64 first_term, terms;
    // Bytes of the next block that are asked for with each row.
    i64 first_row, ahead;

    template <int count> MB_INLINE_MEMBER void run(i64 row) const {
        const Product& given = panel.given;
        Vec<float> sums[count][vectors];
        begin(sums, row);
        ask_for_next_block(row, count);
        const float* right = packed;
        const float* left = given.left + row * given.left_row + first_term * given.left_term;
        for (i64 term = 0; term < terms; ++term) {
            if (term % line_terms == 0) {
#pragma GCC unroll 8
                for (int number = 0; number < count; ++number) {
                    __builtin_prefetch(left + (count + number) * given.left_row);
                }
            }
            Vec<float> columns[vectors];
#pragma GCC unroll 4
            for (int place = 0; place < vectors; ++place) columns[place] = in_register(load<float>(right + place * lanes));
#pragma GCC unroll 8
            for (int number = 0; number < count; ++number) {
                const Vec<float> factor = broadcast<float>(left[number * given.left_row]);
#pragma GCC unroll 4
                for (int place = 0; place < vectors; ++place) {
                    sums[number][place] = add(sums[number][place], mul(factor, columns[place]));
                }
            }
            right += vectors * lanes;
            left += given.left_term;
        }
#pragma GCC unroll 8
        for (int number = 0; number < count; ++number) {
#pragma GCC unroll 4
            for (int place = 0; place < vectors; ++place) panel.put(row + number, place, sums[number][place]);
        }
    }

    template <int count> MB_INLINE_MEMBER void begin(Vec<float> (&sums)[count][vectors], i64 row) const {
#pragma GCC unroll 4
        for (int place = 0; place < vectors; ++place) {
            const Vec<float> start = first_term == 0 ? panel.start(place) : broadcast<float>(0.0f);
#pragma GCC unroll 8
            for (int number = 0; number < count; ++number) {
                sums[number][place] = first_term == 0 ? start : panel.get(row + number, place);
            }
        }
    }

    MB_INLINE_MEMBER void ask_for_next_block(i64 row, i64 count) const {
        const char* const next = reinterpret_cast<const char*>(packed + terms * vectors * lanes);
        const char* const share = next + (row - first_row) * ahead;
        for (i64 byte = 0; byte < count * ahead; byte += line_bytes) __builtin_prefetch(share + byte, 0, 2);
    }
};

template <int vectors, bool whole>
static __attribute__((noinline)) void fill_panel(const Product& given, i64 number, i64 first_row, i64 end_row) {
    constexpr i64 width = vectors * lanes;
    const i64 first = number * width;
    const Panel<vectors, whole> panel = {given, first, least(given.columns - first, width)};
    // Without terms there is one block, which is empty: sums of nothing are written, too.
    for (i64 term = 0; term == 0 || term < given.terms; term += term_block) {
        const i64 terms = least(given.terms - term, term_block);
        const float* const packed = given.packed + (number * given.terms + term) * width;
        const i64 ahead = terms * width * static_cast<i64>(sizeof(float)) / (end_row - first_row);
        const Tile<vectors, whole> tile = {panel, packed, term, terms, first_row, ahead};
        in_tiles<tile_rows(vectors)>(tile, end_row, first_row);
    }
}

}  // namespace product

// Threads share panels of all blocks of rows. Batches that lie one behind the other are one of many rows.
template <int vectors> MB_INLINE void multiply(Product given) {
    using namespace product;
    constexpr i64 width = vectors * lanes;
    if (given.batches == 0 || given.rows == 0 || given.columns == 0) return;
    if (given.left_batch == given.rows * given.left_row && given.output_batch == given.rows * given.output_row) {
        given.rows *= given.batches;
        given.batches = 1;
    }
    const i64 panels = (given.columns + width - 1) / width;
    const i64 wanted = most((given.rows + row_block - 1) / row_block, least_points / panels);
    const i64 blocks = most(1, least(wanted, given.rows / least_row_block));
    const i64 work = given.batches * given.rows * panels * vectors * given.terms;
    share_points(given.batches * blocks * panels, work, [&](i64 begin, i64 end) {
        for (i64 point = begin; point < end; ++point) {
            const i64 number = point % panels, block = point / panels % blocks, batch = point / panels / blocks;
            const i64 first = given.rows * block / blocks, last = given.rows * (block + 1) / blocks;
            Product one = given;
            one.left += batch * given.left_batch;
            one.output += batch * given.output_batch;
            if (given.output_column == 1 && (number + 1) * width <= given.columns) {
                fill_panel<vectors, true>(one, number, first, last);
            } else {
                fill_panel<vectors, false>(one, number, first, last);
            }
        }
    });
}

}  // namespace mb
