// Attention as one kernel: softmax(q k^T scale + mask) v, a block of queries and keys at a time.
//
// Place: above `kernel.hpp`; included by functions of the template `attention`. Input: tensors [batch, head, position,
// feature] of any strides. Method: scores are held transposed, one key to a row and queries in the lanes, so that keys
// and values are read where they lie, one number for all lanes, and maxima and sums go lane by lane. Keys are taken in
// blocks, with a running maximum and sum (Milakov and Gimelshein, 2018).
// Invariants: everything is computed in float32; a NaN among the scores of a query makes its whole row NaN, but where all
// of them are NaN and fewer than a vector has lanes: eager takes the highest of those past NaN, finds none, and takes
// every key for hidden.
#pragma once
#include "tiles.hpp"

namespace mb {

// Positions of one head.
template <class S> struct Rows {
    S* start;
    i64 row, feature;

    MB_INLINE_MEMBER S* at(i64 row_index, i64 feature_index) const {
        return start + row_index * row + feature_index * feature;
    }
    MB_INLINE_MEMBER Rows from(i64 row_index, i64 feature_index) const {
        return {at(row_index, feature_index), row, feature};
    }
};
// A whole tensor. Along a dimension of stride 0 all places are one.
template <class S> struct Heads {
    S* start;
    i64 batch, head, row, feature;

    MB_INLINE_MEMBER Rows<S> rows(i64 batch_index, i64 head_index, i64 row_index) const {
        return {start + batch_index * batch + head_index * head + row_index * row, row, feature};
    }
};

// Elements are S, those of the mask M. Tensors that are not there start at null.
template <class S, class M> struct Attention {
    i64 batches, heads, queries, keys, width, value_width;
    Heads<const S> query, key, value;
    Heads<const M> mask;
    Heads<S> output;
    Heads<float> logarithm;
    float scale;
    // Whether a query from which every key is hidden gets zeros, and 0 as logarithm, instead of NaN.
    bool zeros;

    // Whether eager takes keys of which no score is a number for hidden.
    MB_INLINE_MEMBER bool hides_nan() const { return zeros && keys < lanes; }
};

namespace attention {

// Registers of queries in a block at most, and keys (or features) that are multiplied with them together: their
// products and one row of queries fill the registers.
constexpr int most_vectors = MB_VECTOR_BYTES == 64 ? 4 : 2;
constexpr int tile_of(int vectors) { return vectors > 2 || MB_VECTOR_BYTES < 64 ? 4 : 8; }
// Keys of a block: their scores stay in the first-level cache.
constexpr i64 key_block = 64;

MB_INLINE i64 rounded_up(i64 count) { return (count + lanes - 1) / lanes * lanes; }
MB_INLINE Vec<float> lowest() { return broadcast<float>(-__builtin_inff()); }

// ---- tensors in and out: lanes are queries inside, features outside -----------------------------------------------

// to[j * apart + i] = from(i, j) scale for i below `rows`, 0 for the rest of a vector.
template <class S>
MB_INLINE void load_transposed(float* to, i64 apart, Rows<const S> from, i64 rows, i64 features, float scale) {
    const Vec<float> factor = broadcast<float>(scale);
    if (from.feature != 1) {
        for (i64 place = 0; place < features; ++place) {
            store(to + place * apart, mul(load_strided_partial<float>(from.at(0, place), from.row, rows), factor));
        }
        return;
    }
    for (i64 first = 0; first < features; first += lanes) {
        const i64 columns = least(lanes, features - first);
        Native<float> square[lanes];
        if (columns == lanes && rows == lanes) {
#pragma GCC unroll 16
            for (int row = 0; row < lanes; ++row) square[row] = load<float>(from.at(row, first)).v;
        } else {
            for (int row = 0; row < lanes; ++row) {
                square[row] = row < rows ? load_partial<float>(from.at(row, first), columns).v : Native<float>{};
            }
        }
        turn_blocks<1>(square, AllLanes{});
        for (int place = 0; place < columns; ++place) {
            store(to + (first + place) * apart, mul(Vec<float>{square[place]}, factor));
        }
    }
}
// to(i, j) = from[j * apart + i] for i below `rows`; `from` has whole vectors of features.
template <class S>
MB_INLINE void store_transposed(Rows<S> to, const float* from, i64 apart, i64 rows, i64 features) {
    for (i64 first = 0; first < features; first += lanes) {
        const i64 columns = least(lanes, features - first);
        Vec<float> square[lanes];
        load_turned<float>(square, from + first * apart, apart);
        for (int row = 0; row < rows; ++row) {
            if (to.feature != 1) {
                store_strided_partial(to.at(row, first), to.feature, square[row], columns);
            } else if (columns == lanes) {
                store(to.at(row, first), square[row]);
            } else {
                store_partial(to.at(row, first), square[row], columns);
            }
        }
    }
}
// Rows as float32: in memory of their own, if they are not float32 where they are.
template <class S> MB_INLINE Rows<const float> widened(Rows<const S> from, i64 rows, i64 width, float* to) {
    if constexpr (same<S, float>) {
        return from;
    } else {
        const i64 padded = rounded_up(width);
        for (i64 row = 0; row < rows; ++row) {
            for (i64 first = 0; first < width; first += lanes) {
                const i64 count = least(lanes, width - first);
                const S* const there = from.at(row, first);
                store(to + row * padded + first,
                      from.feature == 1 ? load_partial<float>(there, count)
                                        : load_strided_partial<float>(there, from.feature, count));
            }
        }
        return {to, padded, 1};
    }
}

// ---- products -----------------------------------------------------------------------------------------------------

// sums[c] += factors[c * apart + step * stride] columns[step], over all steps.
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
            for (int place = 0; place < vectors; ++place) {
                sums[number][place] = add(sums[number][place], mul(factor, column[place]));
            }
        }
        columns += vectors * lanes;
        factors += stride;
    }
}

// Scores of keys, in rows that hold the mask if there is one, and the highest of each query so far.
template <int vectors, bool masked, bool causal> struct ScoreTile {
    float* scores;
    const float* queries;
    Rows<const float> keys;
    i64 width;
    // How far the first key is ahead of the first query.
    i64 ahead;
    Vec<float>* highest;

    template <int count> MB_INLINE_MEMBER void run(i64 first) const {
        Vec<float> sums[count][vectors] = {};
        accumulate<count, vectors>(sums, queries, keys.at(first, 0), keys.row, keys.feature, width);
#pragma GCC unroll 8
        for (int number = 0; number < count; ++number) {
#pragma GCC unroll 8
            for (int place = 0; place < vectors; ++place) {
                float* const there = scores + ((first + number) * vectors + place) * lanes;
                Vec<float> score = sums[number][place];
                if constexpr (masked) score = add(score, load<float>(there));
                if constexpr (causal) {
                    const Mask hidden = lt(iota<i32>(place * lanes), broadcast<i32>(ahead + first + number));
                    score = select(hidden, lowest(), score);
                }
                // A NaN is not seen here; it comes back with its weight.
                highest[place].v = score.v > highest[place].v ? score.v : highest[place].v;
                store(there, score);
            }
        }
    }
};

// Weighted sums of features, added to what earlier keys gave.
template <int vectors> struct ValueTile {
    float* outputs;
    const float* weights;
    Rows<const float> values;
    i64 keys;
    bool begins;
    const Vec<float>* correction;

    template <int count> MB_INLINE_MEMBER void run(i64 first) const {
        float* const there = outputs + first * vectors * lanes;
        Vec<float> sums[count][vectors] = {};
        if (!begins) {
#pragma GCC unroll 8
            for (int number = 0; number < count; ++number) {
#pragma GCC unroll 8
                for (int place = 0; place < vectors; ++place) {
                    const Vec<float> before = load<float>(there + (number * vectors + place) * lanes);
                    sums[number][place] = mul(before, correction[place]);
                }
            }
        }
        accumulate<count, vectors>(sums, weights, values.at(0, first), values.feature, values.row, keys);
#pragma GCC unroll 8
        for (int number = 0; number < count; ++number) {
#pragma GCC unroll 8
            for (int place = 0; place < vectors; ++place) {
                store(there + (number * vectors + place) * lanes, sums[number][place]);
            }
        }
    }
};

// ---- a block of queries -------------------------------------------------------------------------------------------

// Of every query: the highest score so far, the sum of weights relative to it, and what earlier sums are to be
// multiplied with because the highest has changed.
template <int vectors> struct Running {
    Vec<float> highest[vectors], total[vectors], correction[vectors];
};

// The weight of a score that is so far from the highest one. What would be denormal is 0: beside a weight of 1 it counts
// for nothing, and products with such numbers take a hundred times as long (masks with -100 instead of infinity).
MB_INLINE Vec<float> weight_of(Vec<float> apart) {
    const Mask lost = lt(apart, broadcast<float>(-87.0f));
    return select(lost, broadcast<float>(0.0f), Vec<float>{raw::exp_single(apart.v)});
}

// Scores become weights.
template <int vectors>
MB_INLINE void weigh(float* scores, i64 keys, const Vec<float>* before, Running<vectors>& state) {
    Vec<float> from[vectors];
#pragma GCC unroll 8
    for (int place = 0; place < vectors; ++place) {
        // As long as every key is hidden nothing is subtracted, and weights are 0.
        from[place] = select(eq(state.highest[place], lowest()), broadcast<float>(0.0f), state.highest[place]);
        state.correction[place] = {raw::exp_single(sub(before[place], from[place]).v)};
        state.total[place] = mul(state.total[place], state.correction[place]);
    }
    for (i64 key = 0; key < keys; ++key) {
#pragma GCC unroll 8
        for (int place = 0; place < vectors; ++place) {
            float* const there = scores + (key * vectors + place) * lanes;
            const Vec<float> weight = weight_of(sub(load<float>(there), from[place]));
            state.total[place] = add(state.total[place], weight);
            store(there, weight);
        }
    }
}

template <int vectors, class M> MB_INLINE void load_mask_rows(float* scores, Rows<const M> mask, i64 rows, i64 keys) {
    constexpr i64 span = vectors * lanes;
    for (i64 key = 0; key < keys && mask.row == 0; ++key) {
        const Vec<float> value = broadcast<float>(load_scalar<float>(mask.at(0, key)));
        for (int place = 0; place < vectors; ++place) store(scores + key * span + place * lanes, value);
    }
    for (i64 first = 0; first < rows && mask.row != 0; first += lanes) {
        load_transposed(scores + first, span, mask.from(first, 0), least(lanes, rows - first), keys, 1.0f);
    }
}

// Pieces of scratch memory.
struct Pieces {
    float *queries, *scores, *outputs, *keys, *values;
};

template <int vectors, class S>
MB_INLINE void finish(Rows<S> output, Rows<float> logarithm, i64 rows, i64 width, bool zeros, float* outputs,
                      const Running<vectors>& state) {
    constexpr i64 span = vectors * lanes;
    const Vec<float> zero = broadcast<float>(0.0f), one = broadcast<float>(1.0f);
    for (int place = 0; place < vectors; ++place) {
        const i64 first = place * lanes, count = least(lanes, rows - first);
        // Where every key is hidden the sum is 0, and so are the outputs.
        const Vec<float> replaced = zeros ? one : zero;
        const Vec<float> total = select(eq(state.total[place], zero), replaced, state.total[place]);
        const Vec<float> share = div(one, total);
        for (i64 feature = 0; feature < width; ++feature) {
            float* const there = outputs + feature * span + first;
            store(there, mul(load<float>(there), share));
        }
        store_transposed(output.from(first, 0), outputs + first, span, count, width);
        if (logarithm.start != nullptr) {
            const Vec<float> highest = select(eq(state.highest[place], lowest()), zero, state.highest[place]);
            store_strided_partial(logarithm.at(first, 0), logarithm.row, add(highest, log_(total)), count);
        }
    }
}

// Scores of queries of which none is a number, as if every key were hidden.
template <int vectors> MB_INLINE void hide_nan(float* scores, i64 keys, const Running<vectors>& state) {
    for (int place = 0; place < vectors; ++place) {
        const Mask hidden = eq(state.highest[place], lowest());
        for (i64 key = 0; key < keys; ++key) {
            float* const there = scores + (key * vectors + place) * lanes;
            store(there, select(hidden, lowest(), load<float>(there)));
        }
    }
}

template <int vectors, bool masked, bool causal, class S, class M>
static __attribute__((noinline)) void attend_block(const Attention<S, M>& given, i64 batch, i64 head, i64 first,
                                                   i64 rows, Pieces memory) {
    constexpr i64 span = vectors * lanes;
    constexpr int tile = tile_of(vectors);
    const Rows<const S> query = given.query.rows(batch, head, first);
    Running<vectors> state;
    for (int place = 0; place < vectors; ++place) {
        const i64 start = place * lanes;
        load_transposed(memory.queries + start, span, query.from(start, 0), least(lanes, rows - start), given.width,
                        given.scale);
        state.highest[place] = lowest();
        state.total[place] = broadcast<float>(0.0f);
    }
    const i64 keys = causal ? least(given.keys, first + rows) : given.keys;
    const i64 blocks = (keys + key_block - 1) / key_block;
    if (blocks == 0) __builtin_memset(memory.outputs, 0, sizeof(float) * span * given.value_width);
    for (i64 number = 0; number < blocks; ++number) {
        const i64 start = keys * number / blocks, count = keys * (number + 1) / blocks - start;
        if constexpr (masked) {
            load_mask_rows<vectors>(memory.scores, given.mask.rows(batch, head, first).from(0, start), rows, count);
        }
        Vec<float> before[vectors];
        for (int place = 0; place < vectors; ++place) before[place] = state.highest[place];
        const auto key = widened(given.key.rows(batch, head, start), count, given.width, memory.keys);
        if (causal && start + count > first + 1) {
            in_tiles<tile>(ScoreTile<vectors, masked, true>{memory.scores, memory.queries, key, given.width,
                                                            start - first, state.highest}, count);
        } else {
            in_tiles<tile>(ScoreTile<vectors, masked, false>{memory.scores, memory.queries, key, given.width, 0,
                                                             state.highest}, count);
        }
        if (given.hides_nan()) hide_nan<vectors>(memory.scores, count, state);
        weigh<vectors>(memory.scores, count, before, state);
        const auto value = widened(given.value.rows(batch, head, start), count, given.value_width, memory.values);
        in_tiles<tile>(ValueTile<vectors>{memory.outputs, memory.scores, value, count, number == 0, state.correction},
                       given.value_width);
    }
    finish<vectors>(given.output.rows(batch, head, first), given.logarithm.rows(batch, head, first), rows,
                    given.value_width, given.zeros, memory.outputs, state);
}

// ---- a single query: lanes are features, then keys ----------------------------------------------------------------

// Up to so many queries are worked on one by one: a vector of them would be nearly empty.
constexpr i64 few_queries = 4;

template <class S> MB_INLINE Vec<float> load_some(const S* pointer, i64 count) {
    return count >= lanes ? load<float>(pointer) : load_partial<float>(pointer, count);
}

// Scores of up to `lanes` keys; the lanes of others are lowest.
template <class S>
MB_INLINE Vec<float> score_keys(const float* query, Rows<const S> keys, i64 count, i64 width) {
    Native<float> sums[lanes] = {};
    for (i64 first = 0; first < width; first += lanes) {
        const Vec<float> factor = load<float>(query + first);
        if (count == lanes) {
#pragma GCC unroll 16
            for (int key = 0; key < lanes; ++key) {
                sums[key] += factor.v * load_some(keys.at(key, first), width - first).v;
            }
        } else {
            for (int key = 0; key < count; ++key) {
                sums[key] += factor.v * load_some(keys.at(key, first), width - first).v;
            }
        }
    }
    turn_blocks<1>(sums, AllLanes{});
#pragma GCC unroll 4
    for (int apart = lanes / 2; apart > 0; apart /= 2) {
        for (int place = 0; place < apart; ++place) sums[place] += sums[place + apart];
    }
    return select(first_lanes(count), Vec<float>{sums[0]}, lowest());
}

// outputs += weights values, a few registers of features at a time; what was there is multiplied with `correction`.
template <class S>
MB_INLINE void add_values(float* outputs, const float* weights, Rows<const S> values, i64 keys, i64 width,
                          float correction) {
    constexpr int together = 4;
    for (i64 first = 0; first < width; first += together * lanes) {
        const int vectors = static_cast<int>(least(together, (width - first + lanes - 1) / lanes));
        Vec<float> sums[together];
#pragma GCC unroll 4
        for (int place = 0; place < together; ++place) {
            const bool there = place < vectors;
            sums[place] = there ? mul(load<float>(outputs + first + place * lanes), broadcast<float>(correction))
                                : broadcast<float>(0.0f);
        }
        for (i64 key = 0; key < keys; ++key) {
            const Vec<float> weight = broadcast<float>(weights[key]);
#pragma GCC unroll 4
            for (int place = 0; place < together; ++place) {
                if (place >= vectors) break;
                const i64 start = first + place * lanes;
                sums[place] = add(sums[place], mul(weight, load_some(values.at(key, start), width - start)));
            }
        }
        for (int place = 0; place < vectors; ++place) store(outputs + first + place * lanes, sums[place]);
    }
}

template <bool masked, bool causal, class S, class M>
static __attribute__((noinline)) void attend_query(const Attention<S, M>& given, i64 batch, i64 head, i64 number,
                                                   Pieces memory) {
    const Rows<const S> query = given.query.rows(batch, head, number);
    const i64 width = rounded_up(given.width), value_width = rounded_up(given.value_width);
    for (i64 place = 0; place < width; ++place) {
        memory.queries[place] = place < given.width ? load_scalar<float>(query.at(0, place)) * given.scale : 0.0f;
    }
    __builtin_memset(memory.outputs, 0, sizeof(float) * value_width);
    const i64 keys = causal ? least(given.keys, number + 1) : given.keys;
    float highest = -__builtin_inff(), total = 0.0f;
    for (i64 start = 0; start < keys; start += key_block) {
        const i64 count = least(key_block, keys - start);
        Vec<float> scores[key_block / lanes];
        Vec<float> top = lowest();
        for (i64 first = 0; first < count; first += lanes) {
            const i64 some = least(lanes, count - first);
            const Rows<const S> key = given.key.rows(batch, head, start + first);
            Vec<float> score = score_keys(memory.queries, key, some, given.width);
            if constexpr (masked) {
                const Rows<const M> mask = given.mask.rows(batch, head, number).from(0, start + first);
                score = add(score, load_strided_partial<float>(mask.start, mask.feature, some));
            }
            top.v = score.v > top.v ? score.v : top.v;
            scores[first / lanes] = score;
        }
        const float before = highest, found = reduce_max(top);
        highest = found > highest ? found : highest;
        // One block, then.
        if (given.hides_nan() && highest == -__builtin_inff()) scores[0] = lowest();
        const float from = highest == -__builtin_inff() ? 0.0f : highest;
        const float correction = raw::exp_single(before - from);
        Vec<float> sum = broadcast<float>(0.0f);
        for (i64 first = 0; first < count; first += lanes) {
            const Vec<float> weight = weight_of(sub(scores[first / lanes], broadcast<float>(from)));
            sum = add(sum, weight);
            store(memory.scores + first, weight);
        }
        total = total * correction + reduce_sum(sum);
        add_values(memory.outputs, memory.scores, given.value.rows(batch, head, start), count, given.value_width,
                   correction);
    }
    total = total == 0.0f && given.zeros ? 1.0f : total;
    const Rows<S> output = given.output.rows(batch, head, number);
    for (i64 place = 0; place < given.value_width; ++place) {
        store_scalar(output.at(0, place), memory.outputs[place] / total);
    }
    if (given.logarithm.start != nullptr) {
        const float logarithm = (highest == -__builtin_inff() ? 0.0f : highest) + log_(total);
        *given.logarithm.rows(batch, head, number).start = logarithm;
    }
}

}  // namespace attention

// Threads share blocks of queries of all heads.
template <bool masked, bool causal, class S, class M> MB_INLINE i64 attend(const Team& team, const Attention<S, M>& given) {
    using namespace attention;
    const bool one_by_one = given.queries <= few_queries && given.key.feature == 1 && given.value.feature == 1;
    const i64 all = (given.queries + lanes - 1) / lanes;
    const i64 blocks = one_by_one ? given.queries : (all + most_vectors - 1) / most_vectors;
    const i64 heads = given.batches * given.heads, width = rounded_up(given.width);
    const i64 value_width = rounded_up(given.value_width);
    const i64 work = heads * given.queries * given.keys * (given.width + given.value_width) / lanes;
    return share_points(team, heads * blocks, work, [&](i64 begin, i64 end) {
        constexpr i64 span = most_vectors * lanes;
        const i64 held = same<S, float> ? 0 : key_block;
        const Scratch scratch(4 * (span * (width + key_block + value_width) + held * (width + value_width)));
        float* const queries = reinterpret_cast<float*>(scratch.start());
        float* const scores = queries + span * width;
        float* const outputs = scores + span * key_block;
        float* const keys = outputs + span * value_width;
        const Pieces memory = {queries, scores, outputs, keys, keys + held * width};
        for (i64 point = begin; point < end; ++point) {
            const i64 number = point % blocks, pair = point / blocks;
            const i64 batch = pair / given.heads, head = pair % given.heads;
            if (one_by_one) {
                attend_query<masked, causal>(given, batch, head, number, memory);
                continue;
            }
            const i64 from = all * number / blocks, vectors = all * (number + 1) / blocks - from;
            const i64 first = from * lanes, rows = least(vectors * lanes, given.queries - first);
            if (vectors == 1) attend_block<1, masked, causal>(given, batch, head, first, rows, memory);
            if (vectors == 2) attend_block<2, masked, causal>(given, batch, head, first, rows, memory);
            if constexpr (most_vectors > 2) {
                if (vectors == 3) attend_block<3, masked, causal>(given, batch, head, first, rows, memory);
                if (vectors == 4) attend_block<4, masked, causal>(given, batch, head, first, rows, memory);
            }
        }
    });
}

}  // namespace mb
