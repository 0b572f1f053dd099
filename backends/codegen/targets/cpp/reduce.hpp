// Folding lanes into one value, running results and statistics, positions of extremes, atomic updates.
//
// Place: above `arithmetic.hpp` and `memory.hpp`.
// Invariants: maximum and minimum propagate NaN; `ArgBest` gives the first position of the extreme, a NaN being the
// most extreme; Welford over nothing has mean NaN and 0 squared distance. Lanes are folded pairwise.
#pragma once
#include "arithmetic.hpp"
#include "memory.hpp"

namespace mb {

// The two halves of a vector folded into one, again and again.
template <class T, int count, class Pieces, class Function> MB_INLINE T fold_pieces(Pieces value, Function function) {
#if defined(MB_SHUFFLES)
    // The last steps stay in the register: comparing scalars would branch.
    if constexpr (sizeof(value) == 16 && count == 4) {
        value = function(value, __builtin_shufflevector(value, value, 2, 3, 0, 1));
        return function(value, __builtin_shufflevector(value, value, 1, 0, 3, 2))[0];
    } else if constexpr (sizeof(value) == 16 && count == 2) {
        return function(value, __builtin_shufflevector(value, value, 1, 0))[0];
    } else
#endif
    if constexpr (count == 2) {
        return function(static_cast<T>(value[0]), static_cast<T>(value[1]));
    } else {
        typedef T Half __attribute__((vector_size(count / 2 * sizeof(T))));
        return fold_pieces<T, count / 2>(function(lower_half<Half>(value), upper_half<Half>(value)), function);
    }
}
#define MB_FOLD(name, expression)                                                                            \
    template <class T> MB_INLINE T name(VecOf<T, 1> value) {                                                 \
        return fold_pieces<T, lanes>(value.v, [](auto a, auto b) { return expression; });                    \
    }                                                                                                        \
    template <class T> MB_INLINE T name(VecOf<T, 2> value) {                                                 \
        const auto function = [](auto a, auto b) { return expression; };                                     \
        return fold_pieces<T, half_lanes>(function(value.low, value.high), function);                        \
    }
MB_FOLD(reduce_sum, a + b)
MB_FOLD(reduce_prod, a * b)
MB_FOLD(fold_greater, a > b ? a : b)
MB_FOLD(fold_less, a < b ? a : b)
MB_FOLD(fold_maximum, ((a > b) | (a != a)) ? a : b)
MB_FOLD(fold_minimum, ((a < b) | (a != a)) ? a : b)
#undef MB_FOLD

// Whether lanes may be NaN; without a register for comparisons, asking costs as much as minding each.
template <class V> MB_INLINE bool may_have_nan(V value) {
#ifdef MB_MASKED_REGISTERS
    if constexpr (same<V, Vec<float>>) return __builtin_ia32_cmpps512_mask(value.v, value.v, 3, -1, 4) != 0;
    if constexpr (same<V, Vec<double>>) return __builtin_ia32_cmppd512_mask(value.low, value.high, 3, -1, 4) != 0;
    return false;
#else
    return true;
#endif
}
#define MB_EXTREME(name, plain, with_nan)                                                       \
    template <class T> MB_INLINE T name(VecOf<T, 1> value) {                                    \
        return __builtin_expect(may_have_nan(value), false) ? with_nan(value) : plain(value);   \
    }                                                                                           \
    template <class T> MB_INLINE T name(VecOf<T, 2> value) {                                    \
        return __builtin_expect(may_have_nan(value), false) ? with_nan(value) : plain(value);   \
    }
MB_EXTREME(reduce_max, fold_greater, fold_maximum)
MB_EXTREME(reduce_min, fold_less, fold_minimum)
#undef MB_EXTREME

MB_INLINE bool reduce_any(Mask mask) {
    return fold_pieces<i32, lanes>(mask.v, [](auto a, auto b) { return a | b; }) != 0;
}
MB_INLINE bool reduce_all(Mask mask) {
    return fold_pieces<i32, lanes>(mask.v, [](auto a, auto b) { return a & b; }) != 0;
}

// ---- running results along the lanes -------------------------------------------------------------------------------

// `__builtin_shufflevector` of all lanes, with the indices `first`, `first + step`...
template <int count, int first, int step, class V> MB_INLINE V shuffled(V a, V b) {
#if defined(MB_SHUFFLES)
#define MB_PLACE(lane) (first + (lane) * step)
    if constexpr (count == 16) {
        return __builtin_shufflevector(a, b, MB_PLACE(0), MB_PLACE(1), MB_PLACE(2), MB_PLACE(3), MB_PLACE(4),
                                       MB_PLACE(5), MB_PLACE(6), MB_PLACE(7), MB_PLACE(8), MB_PLACE(9), MB_PLACE(10),
                                       MB_PLACE(11), MB_PLACE(12), MB_PLACE(13), MB_PLACE(14), MB_PLACE(15));
    } else if constexpr (count == 8) {
        return __builtin_shufflevector(a, b, MB_PLACE(0), MB_PLACE(1), MB_PLACE(2), MB_PLACE(3), MB_PLACE(4),
                                       MB_PLACE(5), MB_PLACE(6), MB_PLACE(7));
    } else if constexpr (count == 4) {
        return __builtin_shufflevector(a, b, MB_PLACE(0), MB_PLACE(1), MB_PLACE(2), MB_PLACE(3));
    } else {
        return __builtin_shufflevector(a, b, MB_PLACE(0), MB_PLACE(1));
    }
#undef MB_PLACE
#else
    V result;
    for (int lane = 0; lane < count; ++lane) {
        const int place = first + lane * step;
        result[lane] = place < count ? a[place] : b[place - count];
    }
    return result;
#endif
}
// Every lane becomes the fold of all lanes up to it; `identity` is folded where there are none.
template <int count, int distance = 1, class V, class Function>
MB_INLINE V fold_up(V value, V identity, Function function) {
    if constexpr (distance >= count) {
        return value;
    } else {
        const V earlier = shuffled<count, count - distance, 1>(identity, value);
        return fold_up<count, 2 * distance>(function(earlier, value), identity, function);
    }
}
// `carry` has the result so far in all lanes. It waits for one operation only: lanes are folded without it.
template <class T, class S, class Function>
MB_INLINE Vec<T> run_along(VecOf<T, 1>& carry, VecOf<T, 1> value, S identity, Function function) {
    const Native<T> start = fill<Native<T>>(static_cast<T>(identity));
    const Native<T> folded = fold_up<lanes>(value.v, start, function);
    const Vec<T> result = {function(carry.v, folded)};
    carry.v = function(carry.v, shuffled<lanes, lanes - 1, 0>(folded, folded));
    return result;
}
template <class T, class S, class Function>
MB_INLINE Vec<T> run_along(VecOf<T, 2>& carry, VecOf<T, 2> value, S identity, Function function) {
    const Native<T> start = fill<Native<T>>(static_cast<T>(identity));
    const Native<T> low = fold_up<half_lanes>(value.low, start, function);
    const Native<T> upper = fold_up<half_lanes>(value.high, start, function);
    const Native<T> high = function(shuffled<half_lanes, half_lanes - 1, 0>(low, low), upper);
    const Vec<T> result = {function(carry.low, low), function(carry.low, high)};
    carry.low = function(carry.low, shuffled<half_lanes, half_lanes - 1, 0>(high, high));
    return result;
}
#define MB_RUNNING(name, expression)                                                             \
    template <class V, class S> MB_INLINE V name(V& carry, V value, S identity) {                \
        return run_along(carry, value, identity, [](auto a, auto b) { return expression; });     \
    }
MB_RUNNING(running_sum, a + b)
MB_RUNNING(running_prod, a * b)
MB_RUNNING(running_max, raw::maximum(a, b))
MB_RUNNING(running_min, raw::minimum(a, b))
#undef MB_RUNNING

// ---- mean and sum of squared distances from it --------------------------------------------------------------------

template <class T> struct WelfordScalar {
    T mean = 0;
    T squares = 0;
    i64 count = 0;

    MB_INLINE_MEMBER void add(T value) {
        count += 1;
        const T distance = value - mean;
        mean += distance / static_cast<T>(count);
        squares += distance * (value - mean);
    }
    MB_INLINE_MEMBER void combine(const WelfordScalar& other) {
        const i64 total = count + other.count;
        if (total == 0) return;
        const T share = static_cast<T>(other.count) / static_cast<T>(total);
        const T distance = other.mean - mean;
        mean += distance * share;
        squares += other.squares + distance * distance * static_cast<T>(count) * share;
        count = total;
    }
    // Mean and squares as the program sees them.
    MB_INLINE_MEMBER WelfordScalar finish() const {
        return {count == 0 ? static_cast<T>(__builtin_nanf("")) : mean, squares, count};
    }
};

// One running statistic per lane. Whole additions share one count; masked ones are counted by lane.
template <class T> struct WelfordVec {
    Vec<T> mean = broadcast<T>(0);
    Vec<T> squares = broadcast<T>(0);
    Vec<i32> extra = broadcast<i32>(0);
    i64 count = 0;
    bool ragged = false;

    MB_INLINE_MEMBER Vec<T> counts() const { return convert<T>(mb::add(convert<i64>(extra), broadcast<i64>(count))); }
    MB_INLINE_MEMBER void add(Vec<T> value) {
        count += 1;
        const Vec<T> share = ragged ? reciprocal(counts()) : broadcast<T>(T(1) / static_cast<T>(count));
        const Vec<T> distance = sub(value, mean);
        mean = mb::add(mean, mul(distance, share));
        squares = mb::add(squares, mul(distance, sub(value, mean)));
    }
    MB_INLINE_MEMBER void add_masked(Vec<T> value, Mask mask) {
        ragged = true;
        extra = sub(extra, Vec<i32>{mask.v});
        const Vec<T> distance = sub(value, mean);
        const Vec<T> moved = mb::add(mean, div(distance, maximum(counts(), broadcast<T>(1))));
        squares = select(mask, mb::add(squares, mul(distance, sub(value, moved))), squares);
        mean = select(mask, moved, mean);
    }
    MB_INLINE_MEMBER void add_partial(Vec<T> value, i64 number) { add_masked(value, first_lanes(number)); }
    MB_INLINE_MEMBER void combine(const WelfordVec& other) {
        const Vec<T> mine = counts(), theirs = other.counts();
        const Vec<T> share = div(theirs, maximum(mb::add(mine, theirs), broadcast<T>(1)));
        const Vec<T> distance = sub(other.mean, mean);
        mean = mb::add(mean, mul(distance, share));
        squares = mb::add(squares, mb::add(other.squares, mul(mul(mul(distance, distance), mine), share)));
        extra = mb::add(extra, other.extra);
        count += other.count;
        ragged = ragged | other.ragged;
    }
    // All lanes as one. Means are averaged by their distances from that of the first lane, which are small.
    MB_INLINE_MEMBER WelfordScalar<T> total() const {
        const i64 number = count * lanes + reduce_sum(convert<i64>(extra));
        if (number == 0) return {};
        const Vec<T> share = mul(counts(), broadcast<T>(T(1) / static_cast<T>(number)));
        const T start = lane_of(mean, 0);
        const T average = start + reduce_sum(mul(sub(mean, broadcast<T>(start)), share));
        const Vec<T> distance = sub(mean, broadcast<T>(average));
        return {average, reduce_sum(mb::add(squares, mul(mul(distance, distance), counts()))), number};
    }
    // Mean and squares of each lane as the program sees them.
    MB_INLINE_MEMBER WelfordVec finish() const {
        WelfordVec result = *this;
        result.mean = select(eq(counts(), broadcast<T>(0)), broadcast<T>(__builtin_nanf("")), mean);
        return result;
    }
};

// ---- position of the extreme --------------------------------------------------------------------------------------

template <class T, bool is_max> struct ArgBest {
    T best = 0;
    i64 position = -1;

    static MB_INLINE_MEMBER bool beats(T value, T best) {
        const bool beyond = is_max ? value > best : value < best;
        return beyond | ((value != value) & (best == best));
    }
    MB_INLINE_MEMBER void add(T value, i64 at) {
        if (position < 0 || beats(value, best)) {
            best = value;
            position = at;
        }
    }
    // In any order: among equals the first position stays.
    MB_INLINE_MEMBER void combine(const ArgBest& other) {
        if (other.position < 0) return;
        const bool tied = !beats(other.best, best) && !beats(best, other.best);
        if (position < 0 || beats(other.best, best) || (tied && other.position < position)) *this = other;
    }
};

// What nothing is beyond in the other direction.
template <class T, bool is_max> constexpr T farthest() {
    if constexpr (same<T, float> || same<T, double>) {
        return is_max ? -__builtin_inff() : __builtin_inff();
    } else {
        constexpr T highest = static_cast<T>(~(T(1) << (8 * sizeof(T) - 1)));
        return is_max ? -highest - 1 : highest;
    }
}

// At the start every lane has the least of all values at position 0: where no value is beyond it, that is the answer.
template <class T, bool is_max> struct ArgBestVec {
    Vec<T> best = broadcast<T>(farthest<T, is_max>());
    Vec<i64> position = broadcast<i64>(0);

    // A NaN is beyond everything but another NaN.
    MB_INLINE_MEMBER Mask beaten_by(Vec<T> value) const {
        return and_(not_(is_max ? le(value, best) : ge(value, best)), eq(best, best));
    }
    MB_INLINE_MEMBER void take(Vec<T> value, Vec<i64> at, Mask mask) {
        best = select(mask, value, best);
        position = select(mask, at, position);
    }
    MB_INLINE_MEMBER void add_masked(Vec<T> value, Vec<i64> at, Mask mask) {
        take(value, at, and_(mask, beaten_by(value)));
    }
    MB_INLINE_MEMBER void add(Vec<T> value, Vec<i64> at) { take(value, at, beaten_by(value)); }
    MB_INLINE_MEMBER void add_partial(Vec<T> value, Vec<i64> at, i64 number) {
        add_masked(value, at, first_lanes(number));
    }
    MB_INLINE_MEMBER ArgBest<T, is_max> total() const {
        ArgBest<T, is_max> result;
        for (int lane = 0; lane < lanes; ++lane) result.combine({lane_of(best, lane), lane_of(position, lane)});
        return result;
    }
};

// ---- atomic updates -----------------------------------------------------------------------------------------------

// `*pointer = function(*pointer)` as one step; the function is over the compute type.
template <class S, class Function> MB_INLINE void atomic_update(S* pointer, Function function) {
    S expected, desired;
    __atomic_load(pointer, &expected, __ATOMIC_RELAXED);
    do {
        store_scalar(&desired, function(load_scalar<Compute<S>>(&expected)));
    } while (!__atomic_compare_exchange(pointer, &expected, &desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
template <class S, class T> MB_INLINE void atomic_add(S* pointer, T value) {
    if constexpr (same<S, i32> || same<S, i64>) {
        __atomic_fetch_add(pointer, static_cast<S>(value), __ATOMIC_RELAXED);
    } else {
        atomic_update(pointer, [=](Compute<S> old) { return raw::add(old, static_cast<Compute<S>>(value)); });
    }
}

}  // namespace mb
