// What kernels need around their arithmetic: threads, scratch memory, running results.
//
// Place: included by every generated module after `vector.hpp`.
// Invariants: without OpenMP everything runs on the calling thread. Scratch is aligned for vectors and dies with its object.
#pragma once

#ifdef _OPENMP
extern "C" int omp_get_max_threads();
extern "C" int omp_get_num_threads();
extern "C" int omp_get_thread_num();
extern "C" int omp_in_parallel();
#endif

namespace mb {

// Vector operations that one more thread is worth.
constexpr i64 work_per_thread = 32768;

// Calls `body(first, last)` on consecutive pieces of 0...points, one for each thread; few points or little work get few threads.
template <class Body> MB_INLINE void share_points(i64 points, i64 work, Body body) {
#ifdef _OPENMP
    const i64 wanted = work / work_per_thread < points ? work / work_per_thread : points;
    if (wanted > 1 && !omp_in_parallel()) {
        const i64 limit = omp_get_max_threads();
        const int threads = static_cast<int>(wanted < limit ? wanted : limit);
        if (threads > 1) {
#pragma omp parallel num_threads(threads)
            {
                const i64 number = omp_get_thread_num(), count = omp_get_num_threads();
                const i64 share = points / count, extra = points % count;
                const i64 first = number * share + (number < extra ? number : extra);
                body(first, first + share + (number < extra ? 1 : 0));
            }
            return;
        }
    }
#endif
    body(0, points);
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

// ---- squares of values turned in registers ---------------------------------------------------------------------------------

template <int... numbers> struct Sequence {};
template <int count, int... numbers> struct CountTo : CountTo<count - 1, count - 1, numbers...> {};
template <int... numbers> struct CountTo<0, numbers...> {
    using type = Sequence<numbers...>;
};

// Exchanges the blocks of `step` lanes off the diagonal of two rows that are `step` apart.
template <int step, class V, int... lane> MB_INLINE void exchange(V& low, V& high, Sequence<lane...>) {
    const V first = __builtin_shufflevector(low, high, ((lane & step) ? lanes + lane - step : lane)...);
    high = __builtin_shufflevector(low, high, ((lane & step) ? lanes + lane : lane + step)...);
    low = first;
}
template <int step, class T> MB_INLINE void turn_blocks(Vec<T>* rows) {
    if constexpr (step < lanes) {
#pragma GCC unroll 16
        for (int row = 0; row < lanes; ++row) {
            if (!(row & step)) exchange<step>(rows[row].v, rows[row + step].v, typename CountTo<lanes>::type{});
        }
        turn_blocks<2 * step, T>(rows);
    }
}
// columns[j] has lane i where `pointer[i * stride + j]` is.
template <class V, class S> MB_INLINE void load_turned(V* columns, const S* pointer, i64 stride) {
    using T = decltype(lane_of(*columns, 0));
#pragma GCC unroll 16
    for (int row = 0; row < lanes; ++row) columns[row] = load<T>(pointer + row * stride);
    turn_blocks<1, T>(columns);
}

// Statistics of a block on their way into those of the whole.
MB_INLINE WelfordScalar<double> widened(const WelfordScalar<float>& block) {
    return {block.mean, block.squares, block.count};
}
MB_INLINE WelfordScalar<double> widened(const WelfordScalar<double>& block) { return block; }
MB_INLINE WelfordVec<double> widened(const WelfordVec<float>& block) {
    return {convert<double>(block.mean), convert<double>(block.squares), block.extra, block.count, block.ragged};
}
MB_INLINE WelfordVec<double> widened(const WelfordVec<double>& block) { return block; }

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
