// What kernels need around their arithmetic: threads, scratch memory, running results.
//
// Place: included by every generated module after `vector.hpp`.
// Invariants: kernels start no threads (`team.hpp`). Scratch is aligned for vectors and dies with its object.
#pragma once
#include "told.hpp"

namespace mb {

// Calls `body(first, last)` on the calling thread's piece of 0...points, if it has one; few points or little work get few
// threads. Returns how many.
template <class Body> MB_INLINE i64 share_points(const Team& team, i64 points, i64 work, Body body) {
    const i64 worth = work / team.worth < points ? work / team.worth : points;
    const i64 wanted = worth < 1 ? 1 : worth, count = wanted < team.count ? wanted : team.count;
    if (team.number < 0 || team.number >= count) return count;
    const i64 share = points / count, extra = points % count;
    const i64 first = team.number * share + (team.number < extra ? team.number : extra);
    body(first, first + share + (team.number < extra ? 1 : 0));
    return count;
}

// Memory of one thread while it works on its points.
class Scratch {
  public:
    explicit Scratch(i64 bytes) : memory_(__builtin_malloc(static_cast<u64>(bytes) + 64)) {
        if (memory_ == nullptr) __builtin_trap();
    }
    ~Scratch() { __builtin_free(memory_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    char* start() const { return reinterpret_cast<char*>((reinterpret_cast<u64>(memory_) + 63) & ~u64(63)); }

  private:
    void* memory_;
};

// Statistics of a block of values, as distances from the first of them: their rounding errors are those of the distances,
// however far the values are from zero.
template <class T> struct BlockStatistics {
    Vec<T> pivot = broadcast<T>(0);
    WelfordVec<T> distances;

    MB_INLINE_MEMBER bool empty() const { return distances.count == 0 && !distances.ragged; }
    MB_INLINE_MEMBER void begin(Vec<T> value) {
        if (!empty()) return;
        const Vec<T> zero = broadcast<T>(0);
        pivot = select(eq(sub(value, value), zero), value, zero);
    }
    MB_INLINE_MEMBER void add(Vec<T> value) {
        begin(value);
        distances.add(sub(value, pivot));
    }
    MB_INLINE_MEMBER void add_masked(Vec<T> value, Mask mask) {
        begin(value);
        distances.add_masked(sub(value, pivot), mask);
    }
    MB_INLINE_MEMBER WelfordVec<double> widened() const {
        return {mb::add(convert<double>(pivot), convert<double>(distances.mean)), convert<double>(distances.squares),
                distances.extra, distances.count, distances.ragged};
    }
};

// Two blocks as one; blocks of whole vectors are mostly of one length, which saves divisions.
template <class T> MB_INLINE BlockStatistics<T> merged(const BlockStatistics<T>& a, const BlockStatistics<T>& b) {
    if (b.empty()) return a;
    if (a.empty()) return b;
    const bool even = a.distances.count == b.distances.count && !a.distances.ragged && !b.distances.ragged;
    const Vec<T> mine = a.distances.counts(), theirs = b.distances.counts();
    const Vec<T> share = even ? broadcast<T>(T(0.5)) : div(theirs, maximum(add(mine, theirs), broadcast<T>(1)));
    const Vec<T> apart = sub(add(sub(b.pivot, a.pivot), b.distances.mean), a.distances.mean);
    const Vec<T> squares = add(a.distances.squares, b.distances.squares);
    return {a.pivot,
            {add(a.distances.mean, mul(apart, share)), add(squares, mul(mul(mul(apart, apart), mine), share)),
             add(a.distances.extra, b.distances.extra), a.distances.count + b.distances.count,
             static_cast<bool>(a.distances.ragged | b.distances.ragged)}};
}
template <class T> MB_INLINE void add_block(WelfordVec<double>& total, const BlockStatistics<T>& block) {
    if (total.count == 0 && !total.ragged) {
        total = block.widened();
    } else {
        total.combine(block.widened());
    }
}

// The better of two running extremes in each lane; of equals the one that comes first.
template <class T, bool is_max>
MB_INLINE ArgBestVec<T, is_max> better(const ArgBestVec<T, is_max>& a, const ArgBestVec<T, is_max>& b) {
    const Mask a_unordered = ne(a.best, a.best), b_unordered = ne(b.best, b.best);
    const Mask tied = or_(eq(a.best, b.best), and_(ne(a.best, a.best), ne(b.best, b.best)));
    ArgBestVec<T, is_max> best = a;
    best.take(b.best, b.position, or_(a.beaten_by(b.best), and_(tied, lt(b.position, a.position))));
    return best;
}
// Position of the first extreme of all lanes.
template <class T, bool is_max> MB_INLINE i64 first_position(const ArgBestVec<T, is_max>& lanes_of) {
    const T extreme = is_max ? reduce_max(lanes_of.best) : reduce_min(lanes_of.best);
    const Mask best = extreme == extreme ? eq(lanes_of.best, broadcast<T>(extreme)) : ne(lanes_of.best, lanes_of.best);
    return reduce_min(select(best, lanes_of.position, broadcast<i64>(0x7fffffffffffffffLL)));
}

// Lanes whose number is below `count`, which may be anything.
MB_INLINE Mask lanes_below(i64 count) { return first_lanes(count < 0 ? 0 : count); }

// log(exp(a) + exp(b)); infinities of one sign stay, NaN spreads.
MB_INLINE double log_add_exp(double a, double b) {
    const double low = minimum(a, b), high = maximum(a, b);
    const bool plain = ne(low, high) | lt(abs_(low), __builtin_inf());
    return plain ? add(high, log1p_(exp_(sub(low, high)))) : a;
}
MB_INLINE Vec<double> log_add_exp(Vec<double> a, Vec<double> b) {
    const Vec<double> low = minimum(a, b), high = maximum(a, b);
    const Mask plain = or_(ne(low, high), lt(abs_(low), broadcast<double>(__builtin_inf())));
    return select(plain, add(high, log1p_(exp_(sub(low, high)))), a);
}

}  // namespace mb
