// Tiles of products: rows and one panel of columns in registers, and what is computed of them before they are stored.
//
// Place: above `tiles.hpp`, below `product.hpp`, which says what products are and how they are cut.
#pragma once
#include "tiles.hpp"

namespace mb {

// Where the elements of a matrix lie whose rows have three dimensions.
template <class Element> struct Matrix {
    Element* start;
    i64 batch, line, place, column;
};

struct Product {
    // Rows, what is summed up, and columns.
    i64 batches, lines, places;
    i64 window_lines, window_places, terms;
    i64 columns;
    Matrix<const float> left;  // without its columns, which are:
    i64 left_window_line, left_window_place;
    const float* bias;  // null where there is none
    i64 bias_column;
    Matrix<float> output;
};

// With the right matrix, as it is stored.
template <class Stored> struct PackedProduct : Product {
    const Stored* packed;

    MB_INLINE_MEMBER i64 panel_bytes(i64 width) const {
        return window_lines * window_places * terms * width * static_cast<i64>(sizeof(Stored));
    }
};

namespace product {

constexpr i64 line_bytes = 64;
constexpr i64 line_terms = line_bytes / sizeof(float);
// So far ahead one row asks for what it reads next.
constexpr i64 near_bytes = 1024;

// Rows of a tile: they, one row of a panel and a number fill the registers.
constexpr int tile_rows(int vectors) {
    constexpr int registers = MB_VECTOR_BYTES == 64 ? 32 : 16;
    return (registers - 1 - vectors) / vectors >= 8 ? 8 : (registers - 1 - vectors) / vectors >= 6 ? 6 : 4;
}

MB_INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }

// A row, and the one after it.
struct Row {
    i64 batch, line, place;

    MB_INLINE_MEMBER static Row at(const Product& given, i64 number) {
        if (given.lines * given.batches == 1) return {0, 0, number};
        const i64 line = number / given.places;
        return {line / given.lines, line % given.lines, number % given.places};
    }
    MB_INLINE_MEMBER void next(const Product& given) {
        if (++place < given.places) return;
        place = 0;
        if (++line < given.lines) return;
        line = 0;
        ++batch;
    }
    template <class Element> MB_INLINE_MEMBER Element* of(const Matrix<Element>& rows) const {
        return rows.start + batch * rows.batch + line * rows.line + place * rows.place;
    }
};

// Which columns of a panel are written: all, or the first ones, which may be all.
enum class Columns { whole, first };

// Where registers have masks, code for the first columns runs whole panels as fast as code of their own would, which
// the compiler would take as long for once more. Elsewhere what is written in part is long, and slows small products.
#ifdef MB_MASKED_REGISTERS
constexpr Columns whole_panels = Columns::first;
#else
constexpr Columns whole_panels = Columns::whole;
#endif

MB_INLINE Vec<float> columns_at(const float* start, i64 step, i64 count) {
    if (step == 1) return count >= lanes ? load<float>(start) : load_partial<float>(start, most(0, count));
    return step == 0 ? broadcast<float>(*start) : load_strided_partial<float>(start, step, least(count, lanes));
}

// A panel of columns of the result.
template <int vectors, Columns kind> struct Panel {
    const Product& given;
    i64 first, columns;

    MB_INLINE_MEMBER bool is_whole() const { return kind == Columns::whole || columns == vectors * lanes; }
    MB_INLINE_MEMBER i64 left_over(int place) const { return most(0, least(columns - place * lanes, lanes)); }
    MB_INLINE_MEMBER float* at(float* row, int place) const { return row + first + place * lanes; }
    MB_INLINE_MEMBER Vec<float> start(int place) const {
        if (given.bias == nullptr || left_over(place) == 0) return broadcast<float>(0.0f);
        const i64 step = given.bias_column;
        return columns_at(given.bias + (first + place * lanes) * step, step, left_over(place));
    }
    MB_INLINE_MEMBER Vec<float> get(float* row, int place) const {
        if (is_whole()) return load<float>(at(row, place));
        return load_partial<float>(at(row, place), left_over(place));
    }
    MB_INLINE_MEMBER void put(float* row, int place, Vec<float> value) const {
        if (is_whole()) {
            store(at(row, place), value);
        } else {
            store_partial(at(row, place), value, left_over(place));
        }
    }
};

// A block of terms: `terms` from `first_term` on of `windows` places of the window, from one on.
template <class Stored> struct Block {
    const Stored* packed;
    i64 window_line, window_place, windows;
    i64 first_term, terms;
    bool is_first, is_last;
};

// Nothing is computed of the sums.
struct AsTheyAre {
    static constexpr bool is_there = false;
    template <class Test> MB_INLINE_MEMBER bool all(Test) const { return true; }
};

// What is computed of every sum, and of elements of matrices that have the same rows and columns. What is `brief`, and
// of nothing else, is computed where the sums are in registers; other code stands once for all tiles.
template <int count, bool brief, class Function> struct Finish {
    static constexpr bool is_there = true, is_brief = brief;
    const Matrix<const float>* others;
    Function function;

    // Whether something holds of all the others.
    template <class Test> MB_INLINE_MEMBER bool all(Test test) const {
        for (int number = 0; number < count; ++number) {
            if (!test(others[number])) return false;
        }
        return true;
    }
    // Of a row of sums in some registers.
    template <int vectors, Columns kind>
    MB_INLINE_MEMBER void finish_row(
        const Panel<vectors, kind>& panel, const Vec<float>* sums, const Row& row, float* output
    ) const {
        const float* starts[count + 1];
        for (int number = 0; number < count; ++number) {
            starts[number] = row.of(others[number]) + panel.first * others[number].column;
        }
#pragma GCC unroll 4
        for (int place = 0; place < vectors; ++place) {
            const i64 columns = kind == Columns::whole ? lanes : panel.left_over(place);
            if (kind != Columns::whole && columns == 0) break;
            const auto other = [&](int number) {
                const i64 step = others[number].column;
                return columns_at(starts[number] + place * lanes * step, step, columns);
            };
            panel.put(output, place, function(sums[place], other));
        }
    }
};

template <int vectors, Columns kind, class Ending>
static __attribute__((noinline)) void finish_rows(
    const Panel<vectors, kind>& panel, const Ending& ending, const Vec<float>* sums, i64 number, i64 count
) {
    Row row = Row::at(panel.given, number);
    for (i64 member = 0; member < count; ++member, row.next(panel.given)) {
        ending.finish_row(panel, sums + member * vectors, row, row.of(panel.given.output));
    }
}

// The block that comes after this one: its lines are asked for few at a time, so that loads do not wait for all.
struct NextBlock {
    const char* place;
    const char* end;
    i64 step;

    MB_INLINE_MEMBER void ask() {
        if (place >= end) return;
        for (i64 byte = 0; byte < step; byte += line_bytes) __builtin_prefetch(place + byte, 0, 2);
        place += step;
    }
};

// Adds the terms of one block to some rows of a panel.
template <int vectors, Columns kind, class Ending, class Stored> struct Tile {
    const Panel<vectors, kind>& panel;
    const Ending& ending;
    const Block<Stored>& block;
    // Bytes of the next block that are asked for with each row.
    i64 first_row, ahead;

    template <int count> using Sums = Vec<float>[count][vectors];

    template <int count> MB_INLINE_MEMBER void run(i64 number) const {
        const Product& given = panel.given;
        const float* left[count];
        float* output[count];
        Row row = Row::at(given, number);
#pragma GCC unroll 8
        for (int member = 0; member < count; ++member, row.next(given)) {
            left[member] = row.of(given.left) + block.first_term * given.left.column;
            output[member] = row.of(given.output);
        }
        Sums<count> sums;
        begin<count>(sums);
        const Stored* right = block.packed;
        NextBlock next = next_block(number, count);
        i64 line = block.window_line, place = block.window_place;
        for (i64 window = 0; window < block.windows; ++window) {
            const i64 offset = line * given.left_window_line + place * given.left_window_place;
            right = add_terms<count>(sums, left, offset, right, next);
            if (++place == given.window_places) place = 0, ++line;
        }
        if (!block.is_first) add_earlier<count>(sums, output);
        end<count>(sums, number, output);
    }

    template <int count>
    MB_INLINE_MEMBER void end(const Sums<count>& sums, i64 number, float* const (&output)[count]) const {
        if constexpr (Ending::is_there) {
            if (block.is_last) return finish<count>(sums, number, output);
        }
#pragma GCC unroll 8
        for (int member = 0; member < count; ++member) {
#pragma GCC unroll 4
            for (int place = 0; place < vectors; ++place) panel.put(output[member], place, sums[member][place]);
        }
    }

    template <int count>
    MB_INLINE_MEMBER void finish(const Sums<count>& sums, i64 number, float* const (&output)[count]) const {
        if constexpr (Ending::is_brief) {
            Row row = Row::at(panel.given, number);
#pragma GCC unroll 8
            for (int member = 0; member < count; ++member, row.next(panel.given)) {
                ending.finish_row(panel, sums[member], row, output[member]);
            }
        } else {
            // A copy, so that the sums themselves stay in registers.
            Vec<float> complete[count * vectors];
#pragma GCC unroll 8
            for (int member = 0; member < count; ++member) {
#pragma GCC unroll 4
                for (int place = 0; place < vectors; ++place) complete[member * vectors + place] = sums[member][place];
            }
            finish_rows(panel, ending, complete, number, count);
        }
    }

    template <int count>
    MB_INLINE_MEMBER const Stored* add_terms(
        Sums<count>& sums, const float* const (&left)[count], i64 offset, const Stored* right, NextBlock& next
    ) const {
        const Product& given = panel.given;
        const i64 next_tile = count * given.left.place;
        for (i64 term = 0; term < block.terms; ++term) {
            if constexpr (count == 1) {
                next.ask();
                near(right);
            } else if (term % line_terms == 0) {
                next.ask();
#pragma GCC unroll 8
                for (int member = 0; member < count; ++member) __builtin_prefetch(left[member] + offset + next_tile);
            }
            Vec<float> columns[vectors];
#pragma GCC unroll 4
            for (int place = 0; place < vectors; ++place) {
                columns[place] = in_register(load<float>(right + place * lanes));
            }
#pragma GCC unroll 8
            for (int member = 0; member < count; ++member) {
                const Vec<float> factor = broadcast<float>(left[member][offset]);
#pragma GCC unroll 4
                for (int place = 0; place < vectors; ++place) {
                    sums[member][place] = add(sums[member][place], mul(factor, columns[place]));
                }
            }
            right += vectors * lanes;
            offset += given.left.column;
        }
        return right;
    }

    template <int count> MB_INLINE_MEMBER void begin(Sums<count>& sums) const {
#pragma GCC unroll 4
        for (int place = 0; place < vectors; ++place) {
            const Vec<float> start = block.is_first ? panel.start(place) : broadcast<float>(0.0f);
#pragma GCC unroll 8
            for (int member = 0; member < count; ++member) sums[member][place] = start;
        }
    }

    // Blocks are summed up by themselves: a sum that starts from those before it rounds each term to their size.
    template <int count>
    MB_INLINE_MEMBER void add_earlier(Sums<count>& sums, float* const (&output)[count]) const {
#pragma GCC unroll 8
        for (int member = 0; member < count; ++member) {
#pragma GCC unroll 4
            for (int place = 0; place < vectors; ++place) {
                sums[member][place] = add(panel.get(output[member], place), sums[member][place]);
            }
        }
    }

    // What one row reads soon comes to the first-level cache; it was asked for into the second.
    MB_INLINE_MEMBER void near(const Stored* right) const {
        constexpr int bytes = vectors * lanes * static_cast<int>(sizeof(Stored));
        const char* const place = reinterpret_cast<const char*>(right) + near_bytes;
#pragma GCC unroll 4
        for (int byte = 0; byte < bytes; byte += line_bytes) __builtin_prefetch(place + byte, 0, 3);
    }

    // The share of some rows, in as many steps as they have lines of terms; of one row, in as many as it has terms: it
    // waits for nothing but its weight, and many lines asked for at once hold up its loads.
    MB_INLINE_MEMBER NextBlock next_block(i64 row, i64 count) const {
        const Stored* const after = block.packed + block.windows * block.terms * vectors * lanes;
        const char* const start = reinterpret_cast<const char*>(after) + (row - first_row) * ahead;
        const i64 together = count == 1 ? 1 : line_terms;
        const i64 steps = most(1, block.windows * ((block.terms + together - 1) / together));
        const i64 bytes = count * ahead, step = (bytes + steps * line_bytes - 1) / (steps * line_bytes) * line_bytes;
        return {start, start + bytes, step};
    }
};

}  // namespace product

}  // namespace mb
