// How the threads of a call go through its kernels together: each phase is cut into shares, and the next one begins when
// all of them are done.
//
// Place: used by `launcher.cpp`; no state outside the call, whose caller keeps a `Phases` and its claims on the stack.
// Input: numbers of phases and shares, in the same order in every thread. Output: every share is computed once, after all
// shares of the phases before it, whose writes it sees.
// Method: a share has a thread of its own, which claims it and usually is the one to compute it. Whoever waits takes over
// shares that nobody has claimed: a thread that the system has put aside holds up the others only if that happened inside
// a share. Waiting is spinning for about as long as a share takes, then sleeping, which gives the core to others; they may
// be who is waited for. Whoever ends a phase wakes others only if there are any asleep.
// Cores are not yielded between: under two other busy processes threads then took turns in being away, a time slice for
// each phase, and a step of 172 kernels took 260 ms rather than 45.
#pragma once
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif

namespace mb {

constexpr int cache_line = 128;

// In nanoseconds. A thread that wakes up takes some 50 microseconds, one that was put aside milliseconds.
constexpr long long claims_after = 5000, asleep_after = 100000, asleep_at_last = 1000000;

inline long long nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// For about a microsecond; whether the number has changed.
inline bool has_changed(const unsigned* number, unsigned from) {
    for (int turn = 0; turn < 16; ++turn) {
        if (__atomic_load_n(number, __ATOMIC_ACQUIRE) != from) return true;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb");
#endif
    }
    return false;
}

// A number that threads wait for. Both sides are sequentially consistent: a waiter counts itself before the system
// compares the number again, the other side changes the number before it looks whether somebody is asleep.
class Awaited {
  public:
    const unsigned* number() const { return &number_; }
    unsigned value() const { return __atomic_load_n(&number_, __ATOMIC_ACQUIRE); }
    unsigned asleep() const { return __atomic_load_n(&asleep_, __ATOMIC_SEQ_CST); }

    void add_one() {
        __atomic_add_fetch(&number_, 1, __ATOMIC_SEQ_CST);
        if (asleep() == 0) return;
#ifdef __linux__
        syscall(SYS_futex, &number_, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
#endif
    }

    // Spins until the number changes or the time has come; whether it has changed.
    bool changes_before(unsigned from, long long end) const {
        do {
            if (has_changed(&number_, from)) return true;
        } while (nanoseconds() < end);
        return false;
    }

    // Returns once the number differs.
    void sleep(unsigned from) {
        __atomic_add_fetch(&asleep_, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&number_, __ATOMIC_SEQ_CST) == from) {
#ifdef __linux__
            syscall(SYS_futex, &number_, FUTEX_WAIT_PRIVATE, from, nullptr, nullptr, 0);
#else
            sched_yield();
#endif
        }
        __atomic_sub_fetch(&asleep_, 1, __ATOMIC_SEQ_CST);
    }

  private:
    alignas(cache_line) unsigned number_ = 0;
    unsigned asleep_ = 0;
};

// Who has a share: the phase after the last one in which it was claimed, so it only grows.
struct alignas(cache_line) Claim {
    unsigned next;
};

class Phases {
  public:
    // `claims`: memory for as many as there may be shares.
    Phases(Claim* claims, long long count) : claims_(claims) {
        for (long long share = 0; share < count; ++share) claims[share].next = 0;
    }

    // Whether all shares of a phase are done.
    bool over(unsigned phase) const { return current_.value() > phase; }

    // Takes part in a phase until it is over, or, in the `last` one, until there is nothing left for this thread.
    // `compute` is given the number of a share.
    template <typename Compute>
    void pass(unsigned phase, long long own, long long shares, bool last, Compute compute) {
        if (over(phase)) return;
        const long long begin = nanoseconds();
        if (own < shares && take(phase, own, shares, compute)) return;
        if (last && own != 0) return;
        if (has_changed(current_.number(), phase)) return;
        const long long done = nanoseconds(), took = done - begin;
        const long long patience = took < asleep_after ? asleep_after : took > asleep_at_last ? asleep_at_last : took;
        const long long grace = claims_after + took / 2;
        if (current_.changes_before(phase, done + (grace < patience ? grace : patience))) return;
        for (long long next = 1; next <= shares; ++next) {
            if (take(phase, (own + next) % shares, shares, compute)) return;
        }
        if (!current_.changes_before(phase, nanoseconds() + patience)) current_.sleep(phase);
    }

    // A thread that has nothing left to do says so; the first one waits here for the `others`, rather than where its
    // team ends, which is a place where the runtime spins for long.
    void leave() { gone_.add_one(); }
    void wait_for_others(unsigned others) {
        for (unsigned gone = gone_.value(); gone < others; gone = gone_.value()) {
            if (!gone_.changes_before(gone, nanoseconds() + asleep_after)) gone_.sleep(gone);
        }
    }

    // How many threads sleep in a phase now.
    unsigned asleep() const { return current_.asleep(); }

  private:
    // Computes a share if nobody has claimed it; whether that ended the phase. A thread that is late, in a phase that is
    // over, finds everything claimed.
    template <typename Compute>
    bool take(unsigned phase, long long share, long long shares, Compute compute) {
        unsigned claimed = __atomic_load_n(&claims_[share].next, __ATOMIC_RELAXED);
        if (claimed > phase) return false;
        if (!__atomic_compare_exchange_n(&claims_[share].next, &claimed, phase + 1, false, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED)) {
            return false;
        }
        compute(share);
        if (__atomic_add_fetch(&done_, 1, __ATOMIC_ACQ_REL) < shares) return false;
        __atomic_store_n(&done_, 0, __ATOMIC_RELAXED);
        current_.add_one();
        return true;
    }

    Awaited current_, gone_;
    alignas(cache_line) long long done_ = 0;
    Claim* const claims_;
};

}  // namespace mb
