// Products of matrices as one kernel: left packed + bias, where the right matrix was packed when it became known.
//
// Place: above `product_tiles.hpp`; included by functions of the template `product`. Input: the left matrix, whose rows
// and terms lie in memory in up to three strides each (windows of an image: they may overlap); the right one in panels
// of neighbouring columns, row after row, so that what a tile reads lies one after the other.
// Method (Goto and van de Geijn, 2008): a tile of rows and one panel of columns stays in registers while a block of
// terms is summed up; the block of the panel stays in the first-level cache while all rows pass. The left matrix is
// read where it lies, one number for all lanes. Each tile asks for its share of the next block, and for the rows of the
// next tile: without that a product of few rows waits for its weight.
// What is computed of each sum, where that is given, is computed when it is complete.
// Invariants: everything is float32, but for the right matrix, which may be of 16-bit floats or of 8-bit integers: they
// are widened in registers. Columns beyond the last, which the packed matrix has as zeros, are not written.
// Columns of the result are neighbours. Sums go there before they are done: nothing that is read may lie there.
#pragma once
#include "product_groups.hpp"

namespace mb {

namespace product {

// Terms that are summed up before a tile goes back to memory: such a block of a panel, stored so, fills two thirds of
// the first-level cache.
template <class Stored> constexpr i64 term_block(i64 width) {
    const i64 terms = MB_CACHE_BYTES * 2 / 3 / (width * static_cast<i64>(sizeof(Stored)));
    return terms < 16 ? 16 : terms / 16 * 16;
}
// Rows that pass a panel before the next one comes.
constexpr i64 row_block = 384;
constexpr i64 least_row_block = 16;
// So few rows wait for a block to come into the first-level cache: two shorter ones fit in there together.
constexpr i64 few_rows = 64;
// One part in so many of the threads' time may be idle.
constexpr i64 idle_part = 17;
// Where the right matrix has no more bytes, or no more than half as many as the rows and what is made of them, each thread
// has rows of its own and reads all of it: what a thread made of an image stays in its cache.
constexpr i64 shared_bytes = 256 * 1024;

MB_INLINE i64 pieces_of(i64 whole, i64 piece) { return most(1, (whole + piece - 1) / piece); }

// Blocks of rows: few, since each reads the panels again, but so many that threads share them evenly.
MB_INLINE i64 blocks_of(i64 rows, i64 panels, i64 panel_bytes, i64 image_bytes, i64 threads) {
    const i64 limit = most(1, rows / least_row_block);
    const i64 wanted = panels * panel_bytes <= most(shared_bytes, image_bytes / 2) ? threads : 1;
    i64 blocks = least(most(wanted, pieces_of(rows, row_block)), limit);
    for (; blocks < limit; ++blocks) {
        const i64 points = blocks * panels, turns = (points + threads - 1) / threads;
        if (turns * threads * (idle_part - 1) <= points * idle_part) break;
    }
    return blocks;
}

template <int vectors, Columns kind, class Ending, class Stored>
static __attribute__((noinline)) void fill_panel(
    const PackedProduct<Stored>& given, const Ending& ending, i64 number, i64 first_row, i64 end_row
) {
    constexpr i64 width = vectors * lanes;
    const i64 first = number * width;
    const Panel<vectors, kind> panel = {given, first, least(given.columns - first, width)};
    const i64 windows = given.window_lines * given.window_places;
    // Short pieces of several windows are one block, long ones are several. Sums of nothing are written, too.
    const i64 most_terms = end_row - first_row < few_rows ? term_block<Stored>(width) / 2 : term_block<float>(width);
    const i64 together = least(windows, most(1, most_terms / most(1, given.terms)));
    const i64 pieces = pieces_of(given.terms, most_terms);
    const Stored* packed = given.packed + number * windows * given.terms * width;
    for (i64 window = 0; window < windows; window += together) {
        for (i64 piece = 0; piece < pieces; ++piece) {
            const i64 term = given.terms * piece / pieces, end = given.terms * (piece + 1) / pieces;
            const i64 count = least(together, windows - window);
            const bool is_last = window + count == windows && piece + 1 == pieces;
            const i64 line = window / given.window_places, place = window % given.window_places;
            const Block<Stored> block = {packed, line, place, count, term, end - term, window + piece == 0, is_last};
            const i64 elements = count * block.terms * width;
            const i64 ahead = elements * static_cast<i64>(sizeof(Stored)) / (end_row - first_row);
            const Tile<vectors, kind, Ending, Stored> tile = {panel, ending, block, first_row, ahead};
            in_tiles<tile_rows(vectors)>(tile, end_row, first_row);
            packed += elements;
        }
    }
}

// The same of a weight in groups.
template <int vectors, Columns kind, class Ending, class Stored>
static __attribute__((noinline)) void fill_panel(
    const GroupedProduct<Stored>& given, const Ending& ending, i64 number, i64 first_row, i64 end_row
) {
    constexpr i64 width = vectors * lanes, most_terms = term_block<float>(width);
    const i64 first = number * width;
    const Panel<vectors, kind> panel = {given, first, least(given.columns - first, width)};
    if (end_row - first_row <= rows_of_codes) {
        const Block<float> whole = {nullptr, 0, 0, 1, 0, given.terms, true, true};
        const Tile<vectors, kind, Ending, float> tile = {panel, ending, whole, first_row, 0};
        const GroupTile<vectors, kind, Ending, Stored> rows = {tile, given, number};
        return in_tiles<2>(rows, end_row, first_row);
    }
    alignas(MB_VECTOR_BYTES) float floats[most_terms * width];
    const i64 pieces = pieces_of(given.terms, most_terms);
    for (i64 piece = 0; piece < pieces; ++piece) {
        const i64 term = given.terms * piece / pieces, end = given.terms * (piece + 1) / pieces;
        widen_terms<vectors>(given, number, term, end, floats);
        const Block<float> block = {floats, 0, 0, 1, term, end - term, piece == 0, piece + 1 == pieces};
        const Tile<vectors, kind, Ending, float> tile = {panel, ending, block, first_row, 0};
        in_tiles<tile_rows(vectors)>(tile, end_row, first_row);
    }
}

// Dimensions that lie one behind the other are one.
template <class Given, class Ending> MB_INLINE Given joined(Given given, const Ending& ending) {
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
template <int vectors, class Given, class Ending>
MB_INLINE i64 multiply(const Team& team, Given given, const Ending& ending) {
    using namespace product;
    constexpr i64 width = vectors * lanes;
    const i64 rows = given.batches * given.lines * given.places;
    if (rows == 0 || given.columns == 0) return 1;
    given = joined(given, ending);
    const i64 panels = (given.columns + width - 1) / width;
    const i64 terms = given.window_lines * given.window_places * given.terms;
    const i64 panel_bytes = given.panel_bytes(width);
    const i64 image_bytes = rows * (given.terms + given.columns) * static_cast<i64>(sizeof(float));
    const i64 blocks = blocks_of(rows, panels, panel_bytes, image_bytes, team.count);
    // Whole tiles, but for the last.
    constexpr i64 tile = tile_rows(vectors);
    const auto start_of = [=](i64 block) { return block == blocks ? rows : rows * block / blocks / tile * tile; };
    const i64 work = rows * panels * vectors * terms;
    return share_points(team, blocks * panels, work, [&](i64 begin, i64 end) {
        for (i64 point = begin; point < end; ++point) {
            const i64 number = point % panels, block = point / panels;
            const i64 first = start_of(block), last = start_of(block + 1);
            if (whole_panels == Columns::first || (number + 1) * width > given.columns) {
                fill_panel<vectors, Columns::first>(given, ending, number, first, last);
            } else {
                fill_panel<vectors, whole_panels>(given, ending, number, first, last);
            }
        }
    });
}

template <int vectors, class Given>
MB_INLINE i64 multiply(const Team& team, const Given& given) {
    return multiply<vectors>(team, given, product::AsTheyAre{});
}

// With what is computed of every sum: a function of the sum and of a function that gives elements of the others.
template <int vectors, class Given, int count, class Function>
MB_INLINE i64 multiply(
    const Team& team, const Given& given, const Matrix<const float> (&others)[count], Function function
) {
    return multiply<vectors>(team, given, product::Finish<count, false, Function>{others, function});
}
template <int vectors, bool brief, class Given, class Function>
MB_INLINE i64 multiply_alone(const Team& team, const Given& given, Function function) {
    return multiply<vectors>(team, given, product::Finish<0, brief, Function>{nullptr, function});
}

}  // namespace mb
