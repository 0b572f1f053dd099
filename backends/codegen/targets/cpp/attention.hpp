// Attention as one kernel: softmax(q k^T scale + mask) v, a block of queries at a time, never the whole score matrix.
//
// Place: above `kernel.hpp`; included by modules with the template `attention`. Input: tensors [batch, head, position,
// feature] of any strides. Method: scores are held transposed, one key to a row and queries in the lanes, so that keys
// and values are read where they lie, one factor for all lanes, and maxima and sums go lane by lane. Keys are taken in
// blocks with a running maximum and sum (Milakov and Gimelshein, 2018).
// Invariants: sums are in float32; a row that is masked throughout gives zeros and 0 as logarithm; NaN spreads over its row.
#pragma once
#include "kernel.hpp"

namespace mb {

// A tensor of four dimensions; what a dimension of stride 0 holds counts for every place along it.
template <class S> struct Heads {
    S* start;
    i64 batch, head, row, feature;

    MB_INLINE_MEMBER Heads at(i64 batch_index, i64 head_index, i64 row_index) const {
        return {start + batch_index * batch + head_index * head + row_index * row, batch, head, row, feature};
    }
    MB_INLINE_MEMBER S* element(i64 row_index, i64 feature_index) const {
        return start + row_index * row + feature_index * feature;
    }
};

template <class S, class M> struct Attention {
    i64 batches, heads, queries, keys, width, value_width;
    Heads<const S> query, key, value;
    Heads<const M> mask;
    Heads<S> output;
    Heads<float> logarithm;
    float scale;
};

namespace attention {

// Registers of queries that are worked on together, at most, and keys or features beside them.
constexpr int most_vectors = MB_VECTOR_BYTES == 64 ? 4 : 2;
constexpr int tile_of(int vectors) { return vectors >= 3 ? 4 : MB_VECTOR_BYTES == 64 ? 8 : 4; }
constexpr i64 key_block = 64;

MB_INLINE i64 rounded_up(i64 count) { return (count + lanes - 1) / lanes * lanes; }
MB_INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// Keeps the compiler from loading a value again for each of its uses: loads would be what the products wait for.
MB_INLINE Vec<float> in_register(Vec<float> value) {
#if defined(__AVX512F__) && MB_VECTOR_BYTES == 64
    asm("" : "+v"(value.v));
#elif defined(__x86_64__)
    asm("" : "+x"(value.v));
#endif
    return value;
}

// sums[c] += factors[c * apart + step * stride] * columns[step], over all steps.
template <int count, int vectors>
MB_INLINE void accumulate(Vec<float> (&sums)[count][vectors], const float* columns, const float* factors, i64 apart,
                          i64 stride, i64 steps) {
    for (i64 step = 0; step < steps; ++step) {
        Vec<float> column[vectors];
#pragma GCC unroll 8
        for (int place = 0; place < vectors; ++place) column[place] = in_register(load<float>(columns + place * lanes));
#pragma GCC unroll 8
        for (int number = 0; number < count; ++number) {
            const Vec<float> factor = broadcast<float>(factors[number * apart]);
#pragma GCC unroll 8
            for (int place = 0; place < vectors; ++place) sums[number][place].v += factor.v * column[place].v;
        }
        columns += vectors * lanes;
        factors += stride;
    }
}

// to[j * apart + i] = from[i * row + j * feature] * scale for i below `rows` and j below `features`; zero up to a whole vector of rows.
template <class S> MB_INLINE void turn(float* to, i64 apart, const S* from, i64 row, i64 feature, i64 rows, i64 features, float scale) {
    const Vec<float> factor = broadcast<float>(scale);
    if (feature != 1) {
        for (i64 place = 0; place < features; ++place) {
            store(to + place * apart, mul(load_strided_partial<float>(from + place * feature, row, rows), factor));
        }
        return;
    }
    for (i64 first = 0; first < features; first += lanes) {
        const i64 left = least(lanes, features - first);
        Native<float> square[lanes];
        if (left == lanes && rows == lanes) {
#pragma GCC unroll 16
            for (int place = 0; place < lanes; ++place) square[place] = load<float>(from + first + place * row).v;
        } else {
            for (int place = 0; place < lanes; ++place) {
                square[place] = place < rows ? load_partial<float>(from + first + place * row, left).v : Native<float>{};
            }
        }
        turn_blocks<1>(square, AllLanes{});
        if (left == lanes) {
#pragma GCC unroll 16
            for (int place = 0; place < lanes; ++place) store(to + (first + place) * apart, mul(Vec<float>{square[place]}, factor));
        } else {
            for (int place = 0; place < left; ++place) store(to + (first + place) * apart, mul(Vec<float>{square[place]}, factor));
        }
    }
}

// The other way round: rows of `to` from columns of `from`, which has whole vectors of features.
template <class S> MB_INLINE void turn_back(S* to, i64 row, i64 feature, const float* from, i64 apart, i64 rows, i64 features) {
    for (i64 first = 0; first < features; first += lanes) {
        const i64 left = least(lanes, features - first);
        Vec<float> square[lanes];
        load_turned<float>(square, from + first * apart, apart);
        if (feature == 1 && left == lanes && rows == lanes) {
#pragma GCC unroll 16
            for (int place = 0; place < lanes; ++place) store(to + place * row + first, square[place]);
        } else {
            for (int place = 0; place < least(rows, lanes); ++place) {
                S* const there = to + place * row + first * feature;
                if (feature == 1) {
                    store_partial(there, square[place], left);
                } else {
                    store_strided_partial(there, feature, square[place], left);
                }
            }
        }
    }
}

template <int vectors> struct Running {
    Vec<float> highest[vectors], total[vectors], correction[vectors];
};

// Scores of `count` keys from `first` on, and the highest so far. Rows of `scores` hold the mask, if there is one.
template <int count, int vectors, bool masked, bool causal>
MB_INLINE void score_tile(float* scores, const float* queries, const float* keys, i64 key_row, i64 key_feature, i64 width,
                          i64 ahead, Vec<float>* highest) {
    Vec<float> sums[count][vectors] = {};
    accumulate<count, vectors>(sums, queries, keys, key_row, key_feature, width);
#pragma GCC unroll 8
    for (int number = 0; number < count; ++number) {
#pragma GCC unroll 8
        for (int place = 0; place < vectors; ++place) {
            float* const there = scores + (number * vectors + place) * lanes;
            Vec<float> score = sums[number][place];
            if constexpr (masked) score = add(score, load<float>(there));
            if constexpr (causal) {
                // Lane i is query `place * lanes + i`; it sees keys up to its own number.
                const Vec<i32> query = iota<i32>(place * lanes);
                const Mask hidden = lt(query, broadcast<i32>(ahead + number));
                score = select(hidden, broadcast<float>(-__builtin_inff()), score);
            }
            highest[place].v = score.v > highest[place].v ? score.v : highest[place].v;
            store(there, score);
        }
    }
}

template <int count, int vectors>
MB_INLINE void value_tile(float* outputs, const float* weights, const float* values, i64 value_row, i64 value_feature,
                          i64 keys, bool begin, const Vec<float>* correction) {
    Vec<float> sums[count][vectors];
#pragma GCC unroll 8
    for (int number = 0; number < count; ++number) {
#pragma GCC unroll 8
        for (int place = 0; place < vectors; ++place) {
            float* const there = outputs + (number * vectors + place) * lanes;
            sums[number][place] = begin ? broadcast<float>(0.0f) : mul(load<float>(there), correction[place]);
        }
    }
    accumulate<count, vectors>(sums, weights, values, value_feature, value_row, keys);
#pragma GCC unroll 8
    for (int number = 0; number < count; ++number) {
#pragma GCC unroll 8
        for (int place = 0; place < vectors; ++place) store(outputs + (number * vectors + place) * lanes, sums[number][place]);
    }
}

// `body(constant, first)` for pieces of `count`, `count / 2`, ... that fill 0...end.
template <int count, class Body> MB_INLINE void in_tiles(i64 first, i64 end, Body body) {
    for (; first + count <= end; first += count) body.template operator()<count>(first);
    if constexpr (count > 1) in_tiles<count / 2>(first, end, body);
}

template <int vectors, bool masked, bool causal> struct ScoreTiles {
    float *scores;
    const float *queries, *keys;
    i64 key_row, key_feature, width, ahead;
    Vec<float>* highest;
    template <int count> MB_INLINE_MEMBER void operator()(i64 first) const {
        score_tile<count, vectors, masked, causal>(scores + first * vectors * lanes, queries, keys + first * key_row,
                                                   key_row, key_feature, width, ahead + first, highest);
    }
};
template <int vectors> struct ValueTiles {
    float* outputs;
    const float *weights, *values;
    i64 value_row, value_feature, keys;
    bool begin;
    const Vec<float>* correction;
    template <int count> MB_INLINE_MEMBER void operator()(i64 first) const {
        value_tile<count, vectors>(outputs + first * vectors * lanes, weights, values + first * value_feature, value_row,
                                   value_feature, keys, begin, correction);
    }
};

// Scores become weights; sums and the correction of what was summed before.
template <int vectors> MB_INLINE void weigh(float* scores, i64 keys, const Vec<float>* before, Running<vectors>& state) {
    const Vec<float> lowest = broadcast<float>(-__builtin_inff());
    Vec<float> from[vectors];
#pragma GCC unroll 8
    for (int place = 0; place < vectors; ++place) {
        // Of keys that are all hidden nothing is subtracted: their weights are zero.
        from[place] = select(eq(state.highest[place], lowest), broadcast<float>(0.0f), state.highest[place]);
        state.correction[place] = {raw::exp_single(sub(before[place], from[place]).v)};
        state.total[place] = mul(state.total[place], state.correction[place]);
    }
    for (i64 key = 0; key < keys; ++key) {
#pragma GCC unroll 8
        for (int place = 0; place < vectors; ++place) {
            float* const there = scores + (key * vectors + place) * lanes;
            const Vec<float> weight = {raw::exp_single(sub(load<float>(there), from[place]).v)};
            state.total[place] = add(state.total[place], weight);
            store(there, weight);
        }
    }
}

// A block of rows as float32 in memory of its own; where they are float32 already, they stay where they are.
template <class S> MB_INLINE Heads<const float> widened(Heads<const S> from, i64 rows, i64 width, float* to) {
    if constexpr (same<S, float>) {
        return from;
    } else {
        const i64 padded = rounded_up(width);
        for (i64 row = 0; row < rows; ++row) {
            for (i64 first = 0; first < width; first += lanes) {
                const i64 left = least(lanes, width - first);
                const S* const there = from.element(row, first);
                store(to + row * padded + first, from.feature == 1 ? load_partial<float>(there, left)
                                                                   : load_strided_partial<float>(there, from.feature, left));
            }
        }
        return {to, 0, 0, padded, 1};
    }
}

// Mask of a block, one key to a row.
template <int vectors, class M> MB_INLINE void place_mask(float* scores, Heads<const M> mask, i64 rows, i64 keys) {
    if (mask.row == 0) {
        for (i64 key = 0; key < keys; ++key) {
            const Vec<float> value = broadcast<float>(load_scalar<float>(mask.element(0, key)));
            for (int place = 0; place < vectors; ++place) store(scores + (key * vectors + place) * lanes, value);
        }
        return;
    }
    for (int place = 0; place < vectors; ++place) {
        const i64 left = rows - place * lanes;
        turn(scores + place * lanes, vectors * lanes, mask.element(place * lanes, 0), mask.row, mask.feature,
             least(left, lanes), keys, 1.0f);
    }
}

struct Memory {
    float *queries, *scores, *outputs, *keys, *values;
};

template <int vectors, bool masked, bool causal, class S, class M>
static __attribute__((noinline)) void block(const Attention<S, M>& given, i64 batch, i64 head, i64 first, i64 rows, Memory memory) {
    constexpr int span = vectors * lanes, tile = tile_of(vectors);
    const Heads<const S> query = given.query.at(batch, head, first);
    for (int place = 0; place < vectors; ++place) {
        turn(memory.queries + place * lanes, span, query.element(place * lanes, 0), query.row, query.feature,
             least(rows - place * lanes, lanes), given.width, given.scale);
    }
    Running<vectors> state;
    for (int place = 0; place < vectors; ++place) {
        state.highest[place] = broadcast<float>(-__builtin_inff());
        state.total[place] = broadcast<float>(0.0f);
    }
    const i64 keys = causal ? least(given.keys, first + rows) : given.keys;
    const i64 blocks = (keys + key_block - 1) / key_block;
    for (i64 number = 0; number < blocks; ++number) {
        const i64 start = keys * number / blocks, count = keys * (number + 1) / blocks - start;
        if constexpr (masked) place_mask<vectors>(memory.scores, given.mask.at(batch, head, first).start == nullptr ? given.mask : Heads<const M>{given.mask.at(batch, head, first).element(0, start), 0, 0, given.mask.row, given.mask.feature}, rows, count);
        const Heads<const float> key = widened(given.key.at(batch, head, start), count, given.width, memory.keys);
        Vec<float> before[vectors];
        for (int place = 0; place < vectors; ++place) before[place] = state.highest[place];
        if (causal && start + count > first + 1) {
            in_tiles<tile>(0, count, ScoreTiles<vectors, masked, true>{memory.scores, memory.queries, key.start, key.row, key.feature, given.width, start - first, state.highest});
        } else {
            in_tiles<tile>(0, count, ScoreTiles<vectors, masked, false>{memory.scores, memory.queries, key.start, key.row, key.feature, given.width, 0, state.highest});
        }
        weigh<vectors>(memory.scores, count, before, state);
        const Heads<const float> value = widened(given.value.at(batch, head, start), count, given.value_width, memory.values);
        in_tiles<tile>(0, given.value_width, ValueTiles<vectors>{memory.outputs, memory.scores, value.start, value.row, value.feature, count, number == 0, state.correction});
    }
    const Vec<float> zero = broadcast<float>(0.0f), one = broadcast<float>(1.0f);
    for (int place = 0; place < vectors; ++place) {
        const Vec<float> total = select(eq(state.total[place], zero), one, state.total[place]);
        const Vec<float> share = div(one, total);
        for (i64 feature = 0; feature < given.value_width; ++feature) {
            float* const there = memory.outputs + (feature * vectors + place) * lanes;
            store(there, mul(load<float>(there), share));
        }
        const i64 left = least(rows - place * lanes, lanes);
        const Heads<S> output = given.output.at(batch, head, first + place * lanes);
        turn_back(output.start, output.row, output.feature, memory.outputs + place * lanes, span, left, given.value_width);
        if (given.logarithm.start != nullptr) {
            const Vec<float> highest = select(eq(state.highest[place], broadcast<float>(-__builtin_inff())), zero, state.highest[place]);
            const Heads<float> logarithm = given.logarithm.at(batch, head, first + place * lanes);
            store_strided_partial(logarithm.start, logarithm.row, add(highest, log_(total)), left);
        }
    }
}

}  // namespace attention

template <bool masked, bool causal, class S, class M> MB_INLINE void attend(const Attention<S, M>& given) {
    using namespace attention;
    const i64 all = (given.queries + lanes - 1) / lanes, blocks = (all + most_vectors - 1) / most_vectors;
    const i64 work = given.batches * given.heads * given.queries * given.keys * (given.width + given.value_width) / lanes;
    share_points(given.batches * given.heads * blocks, work, [&](i64 begin, i64 end) {
        constexpr i64 span = most_vectors * lanes;
        const i64 width = rounded_up(given.width), value_width = rounded_up(given.value_width);
        const i64 held = same<S, float> ? 0 : key_block;
        const Scratch scratch(4 * (span * (width + value_width + key_block) + held * (width + value_width)));
        float* const start = reinterpret_cast<float*>(scratch.start());
        float* const scores = start + span * width;
        float* const outputs = scores + span * key_block;
        float* const keys = outputs + span * value_width;
        const Memory memory = {start, scores, outputs, keys, keys + held * width};
        for (i64 point = begin; point < end; ++point) {
            const i64 number = point % blocks, pair = point / blocks;
            const i64 from = all * number / blocks, vectors = all * (number + 1) / blocks - from;
            const i64 first = from * lanes, rows = least(vectors * lanes, given.queries - first);
            const i64 batch = pair / given.heads, head = pair % given.heads;
            if (vectors == 1) block<1, masked, causal>(given, batch, head, first, rows, memory);
            if (vectors == 2) block<2, masked, causal>(given, batch, head, first, rows, memory);
            if constexpr (most_vectors > 2) {
                if (vectors == 3) block<3, masked, causal>(given, batch, head, first, rows, memory);
                if (vectors == 4) block<4, masked, causal>(given, batch, head, first, rows, memory);
            }
        }
    });
}

}  // namespace mb
