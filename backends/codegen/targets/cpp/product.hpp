// Products of matrices as one kernel: left packed + bias, where the right matrix was packed when it became known.
//
// Place: above `tiles.hpp`; included by functions of the template `product`. Input: the left matrix, whose rows and terms
// lie in memory in up to three strides each (windows of an image: they may overlap); the right one in panels of
// neighbouring columns, row after row, so that what a tile reads lies one after the other.
// Method (Goto and van de Geijn, 2008): a tile of rows and one panel of columns stays in registers while a block of terms
// is summed up; the block of the panel stays in the first-level cache while all rows pass. The left matrix is read where
// it lies, one number for all lanes. Each tile asks for its share of the next block, and for the rows of the next tile:
// without that a product of few rows waits for its weight.
// What is computed of each sum, where that is given, is computed when it is complete, while it is in a register.
// Invariants: everything is float32. Columns beyond the last, which the packed matrix has as zeros, are not written.
// Columns of the result are neighbours. Sums go there before they are done: nothing that is read may lie there.
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
    const float* packed;
    const float* bias;  // null where there is none
    i64 bias_column;
    Matrix<float> output;
};

namespace product {

// Terms that are summed up before a tile goes back to memory: such a block of a panel fills two thirds of the first-level
// cache.
constexpr i64 term_block(i64 width) {
    const i64 terms = MB_CACHE_BYTES * 2 / 3 / (width * static_cast<i64>(sizeof(float)));
    return terms < 16 ? 16 : terms / 16 * 16;
}
// Rows that pass a panel before the next one comes.
constexpr i64 row_block = 384;
constexpr i64 least_row_block = 16;
// So few rows wait for a block to come into the first-level cache: two shorter ones fit in there together.
constexpr i64 few_rows = 64;
// One part in so many of the threads' time may be idle.
constexpr i64 idle_part = 17;
// Up to so many bytes, each thread has rows of its own and reads the whole right matrix: what a thread made of a small
// image stays in its cache.
constexpr i64 shared_bytes = 256 * 1024;
constexpr i64 line_bytes = 64;
constexpr i64 line_terms = line_bytes / sizeof(float);

// Rows of a tile: they, one row of a panel and a number fill the registers.
constexpr int tile_rows(int vectors) {
    constexpr int registers = MB_VECTOR_BYTES == 64 ? 32 : 16;
    return (registers - 1 - vectors) / vectors >= 8 ? 8 : (registers - 1 - vectors) / vectors >= 6 ? 6 : 4;
}

MB_INLINE i64 most(i64 a, i64 b) { return a > b ? a : b; }
MB_INLINE i64 pieces_of(i64 whole, i64 piece) { return most(1, (whole + piece - 1) / piece); }

// Blocks of rows: few, since each reads the panels again, but so many that threads share them evenly.
MB_INLINE i64 blocks_of(i64 rows, i64 panels, i64 panel_bytes) {
    const i64 threads = thread_limit(), limit = most(1, rows / least_row_block);
    const i64 wanted = panels * panel_bytes <= shared_bytes ? threads : 1;
    i64 blocks = least(most(wanted, pieces_of(rows, row_block)), limit);
    for (; blocks < limit; ++blocks) {
        const i64 points = blocks * panels, turns = (points + threads - 1) / threads;
        if (turns * threads * (idle_part - 1) <= points * idle_part) break;
    }
    return blocks;
}

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

// Which columns of a panel are written: all, or the first ones.
enum class Columns { whole, first };

MB_INLINE Vec<float> columns_at(const float* start, i64 step, i64 count) {
    if (step == 1) return count >= lanes ? load<float>(start) : load_partial<float>(start, most(0, count));
    return step == 0 ? broadcast<float>(*start) : load_strided_partial<float>(start, step, least(count, lanes));
}

// A panel of columns of the result.
template <int vectors, Columns kind> struct Panel {
    const Product& given;
    i64 first, columns;

    MB_INLINE_MEMBER i64 left_over(int place) const { return most(0, least(columns - place * lanes, lanes)); }
    MB_INLINE_MEMBER float* at(float* row, int place) const {
        return row + first + place * lanes;
    }
    MB_INLINE_MEMBER Vec<float> start(int place) const {
        if (given.bias == nullptr || left_over(place) == 0) return broadcast<float>(0.0f);
        return columns_at(given.bias + (first + place * lanes) * given.bias_column, given.bias_column, left_over(place));
    }
    MB_INLINE_MEMBER Vec<float> get(float* row, int place) const {
        if constexpr (kind == Columns::whole) return load<float>(at(row, place));
        return load_partial<float>(at(row, place), left_over(place));
    }
    MB_INLINE_MEMBER void put(float* row, int place, Vec<float> value) const {
        if constexpr (kind == Columns::whole) {
            store(at(row, place), value);
        } else {
            store_partial(at(row, place), value, left_over(place));
        }
    }
};

// A block of terms: `terms` from `first_term` on of `windows` places of the window, from one on.
struct Block {
    const float* packed;
    i64 window_line, window_place, windows;
    i64 first_term, terms;
    bool is_first, is_last;
};

// Nothing is computed of the sums.
struct AsTheyAre {
    static constexpr bool is_there = false, is_brief = false;
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

// The block that comes after this one: its lines are asked for few at a time, so that loads do not wait for all of them.
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
template <int vectors, Columns kind, class Ending> struct Tile {
    const Panel<vectors, kind>& panel;
    const Ending& ending;
    const Block& block;
    // Bytes of the next block that are asked for with each row.
    i64 first_row, ahead;

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
        Vec<float> sums[count][vectors];
        begin(sums, output);
        const float* right = block.packed;
        NextBlock next = next_block(number, count);
        i64 line = block.window_line, place = block.window_place;
        for (i64 window = 0; window < block.windows; ++window) {
            right = add_terms(sums, left, line * given.left_window_line + place * given.left_window_place, right, next);
            if (++place == given.window_places) place = 0, ++line;
        }
        if constexpr (Ending::is_there) {
            if (block.is_last) return finish(sums, number, output);
        }
#pragma GCC unroll 8
        for (int member = 0; member < count; ++member) {
#pragma GCC unroll 4
            for (int place = 0; place < vectors; ++place) panel.put(output[member], place, sums[member][place]);
        }
    }

    template <int count>
    MB_INLINE_MEMBER void finish(const Vec<float> (&sums)[count][vectors], i64 number, float* const (&output)[count]) const {
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
    MB_INLINE_MEMBER const float* add_terms(
        Vec<float> (&sums)[count][vectors], const float* const (&left)[count], i64 offset, const float* right, NextBlock& next
    ) const {
        const Product& given = panel.given;
        const i64 next_tile = count * given.left.place;
        for (i64 term = 0; term < block.terms; ++term) {
            if (term % line_terms == 0) {
                next.ask();
#pragma GCC unroll 8
                for (int member = 0; member < count; ++member) __builtin_prefetch(left[member] + offset + next_tile);
            }
            Vec<float> columns[vectors];
#pragma GCC unroll 4
            for (int place = 0; place < vectors; ++place) columns[place] = in_register(load<float>(right + place * lanes));
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

    template <int count> MB_INLINE_MEMBER void begin(Vec<float> (&sums)[count][vectors], float* const (&output)[count]) const {
#pragma GCC unroll 4
        for (int place = 0; place < vectors; ++place) {
            const Vec<float> start = block.is_first ? panel.start(place) : broadcast<float>(0.0f);
#pragma GCC unroll 8
            for (int member = 0; member < count; ++member) {
                sums[member][place] = block.is_first ? start : panel.get(output[member], place);
            }
        }
    }

    // The share of some rows, in as many steps as they have lines of terms.
    MB_INLINE_MEMBER NextBlock next_block(i64 row, i64 count) const {
        const char* const start = reinterpret_cast<const char*>(block.packed + block.windows * block.terms * vectors * lanes);
        const i64 steps = most(1, block.windows * ((block.terms + line_terms - 1) / line_terms));
        const i64 bytes = count * ahead, step = (bytes + steps * line_bytes - 1) / (steps * line_bytes) * line_bytes;
        return {start + (row - first_row) * ahead, start + (row - first_row) * ahead + bytes, step};
    }
};

template <int vectors, Columns kind, class Ending>
static __attribute__((noinline)) void fill_panel(
    const Product& given, const Ending& ending, i64 number, i64 first_row, i64 end_row
) {
    constexpr i64 width = vectors * lanes;
    const i64 first = number * width;
    const Panel<vectors, kind> panel = {given, first, least(given.columns - first, width)};
    const i64 windows = given.window_lines * given.window_places;
    // Short pieces of several windows are one block, long ones are several. Sums of nothing are written, too.
    const i64 most_terms = end_row - first_row < few_rows ? term_block(width) / 2 : term_block(width);
    const i64 together = least(windows, most(1, most_terms / most(1, given.terms)));
    const i64 pieces = pieces_of(given.terms, most_terms);
    const float* packed = given.packed + number * windows * given.terms * width;
    for (i64 window = 0; window < windows; window += together) {
        for (i64 piece = 0; piece < pieces; ++piece) {
            const i64 term = given.terms * piece / pieces, end = given.terms * (piece + 1) / pieces;
            const i64 count = least(together, windows - window);
            const Block block = {packed, window / given.window_places, window % given.window_places, count, term, end - term,
                                 window + piece == 0, window + count == windows && piece + 1 == pieces};
            const i64 elements = count * block.terms * width;
            const i64 ahead = elements * static_cast<i64>(sizeof(float)) / (end_row - first_row);
            const Tile<vectors, kind, Ending> tile = {panel, ending, block, first_row, ahead};
            in_tiles<tile_rows(vectors)>(tile, end_row, first_row);
            packed += elements;
        }
    }
}

// Dimensions that lie one behind the other are one.
template <class Ending> MB_INLINE Product joined(Product given, const Ending& ending) {
    const auto all = [&](auto test) { return test(given.left) && test(given.output) && ending.all(test); };
    if (given.lines == 1 || all([&](const auto& rows) { return rows.line == given.places * rows.place; })) {
        given.places *= given.lines;
        given.lines = 1;
    }
    if (given.lines > 1 && all([&](const auto& rows) { return rows.batch == given.lines * rows.line; })) {
        given.lines *= given.batches;
        given.batches = 1;
    }
    if (given.lines == 1 && all([&](const auto& rows) { return rows.batch == given.places * rows.place; })) {
        given.places *= given.batches;
        given.batches = 1;
    }
    if (given.left_window_place == given.terms * given.left.column) {
        given.terms *= given.window_places;
        given.window_places = 1;
    }
    if (given.window_places == 1 && given.left_window_line == given.terms * given.left.column) {
        given.terms *= given.window_lines;
        given.window_lines = 1;
    }
    return given;
}

}  // namespace product

// Threads share panels of all blocks of rows.
template <int vectors, class Ending> MB_INLINE void multiply(Product given, const Ending& ending) {
    using namespace product;
    constexpr i64 width = vectors * lanes;
    const i64 rows = given.batches * given.lines * given.places;
    if (rows == 0 || given.columns == 0) return;
    given = joined(given, ending);
    const i64 panels = (given.columns + width - 1) / width;
    const i64 terms = given.window_lines * given.window_places * given.terms;
    const i64 panel_bytes = terms * width * static_cast<i64>(sizeof(float));
    const i64 blocks = blocks_of(rows, panels, panel_bytes);
    // Whole tiles, but for the last.
    constexpr i64 tile = tile_rows(vectors);
    const auto start_of = [=](i64 block) { return block == blocks ? rows : rows * block / blocks / tile * tile; };
    const i64 work = rows * panels * vectors * terms;
    share_points(blocks * panels, work, [&](i64 begin, i64 end) {
        for (i64 point = begin; point < end; ++point) {
            const i64 number = point % panels, block = point / panels;
            const i64 first = start_of(block), last = start_of(block + 1);
            if ((number + 1) * width > given.columns) {
                fill_panel<vectors, Columns::first>(given, ending, number, first, last);
            } else {
                fill_panel<vectors, Columns::whole>(given, ending, number, first, last);
            }
        }
    });
}

template <int vectors> MB_INLINE void multiply(const Product& given) { multiply<vectors>(given, product::AsTheyAre{}); }

// With what is computed of every sum: a function of the sum and of a function that gives elements of the others.
template <int vectors, int count, class Function>
MB_INLINE void multiply(const Product& given, const Matrix<const float> (&others)[count], Function function) {
    multiply<vectors>(given, product::Finish<count, false, Function>{others, function});
}
template <int vectors, bool brief, class Function> MB_INLINE void multiply_alone(const Product& given, Function function) {
    multiply<vectors>(given, product::Finish<0, brief, Function>{nullptr, function});
}

}  // namespace mb
