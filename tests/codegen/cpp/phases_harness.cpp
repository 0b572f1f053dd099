// Threads that go through phases without OpenMP, so that a sanitizer sees all of their order. Prints what happened.
#include "phases.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

using mb::Phases;

static double processor_ms() {
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) * 1e-6;
}

static void rest(long milliseconds) {
    const timespec span{milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&span, nullptr);
}

// Of a phase; 1 now and then, as where a kernel is not shared.
static long long shares_of(unsigned phase, int threads) { return 1 + phase * 7 % threads; }

// Each share adds the cells of all shares of the phase before to its own number. Memory is not atomic.
static int many(int threads, unsigned count, bool rests) {
    std::vector<mb::Claim> claims(threads);
    Phases phases(claims.data(), threads);
    std::vector<std::vector<unsigned long>> cells(2, std::vector<unsigned long>(threads, 1));
    std::vector<std::vector<int>> times(count, std::vector<int>(threads, 0));
    const auto member = [&](int number) {
        for (unsigned phase = 0; phase < count; ++phase) {
            const auto compute = [&](long long share) {
                unsigned long sum = static_cast<unsigned long>(share);
                const long long before = phase == 0 ? threads : shares_of(phase - 1, threads);
                for (long long other = 0; other < before; ++other) sum += cells[phase % 2][other];
                if (rests && (phase * 31 + static_cast<unsigned>(share)) % 97 == 0) rest(1);
                cells[1 - phase % 2][share] = sum;
                times[phase][share] += 1;
            };
            phases.pass(phase, number, shares_of(phase, threads), phase + 1 == count, compute);
        }
        if (number != 0) {
            phases.leave();
            return;
        }
        phases.wait_for_others(static_cast<unsigned>(threads - 1));
    };
    std::vector<std::thread> team;
    for (int number = 1; number < threads; ++number) team.emplace_back(member, number);
    member(0);
    unsigned long sum = 0, expected = static_cast<unsigned long>(threads);
    for (long long share = 0; share < shares_of(count - 1, threads); ++share) sum += cells[count % 2][share];
    bool once = true;
    for (unsigned phase = 0; phase < count; ++phase) {
        const auto shares = static_cast<unsigned long>(shares_of(phase, threads));
        expected = expected * shares + shares * (shares - 1) / 2;
        for (int share = 0; share < threads; ++share) once &= times[phase][share] == (share < shares_of(phase, threads));
    }
    for (std::thread& thread : team) thread.join();
    std::printf("%s\n", once && sum == expected ? "right" : "wrong");
    return 0;
}

// Two threads, one of which rests in share 0, whoever has taken it: how many others slept then; the most processor time of
// either in that phase; and that of the first one while it waits for the other to leave.
static int late(long milliseconds) {
    std::vector<mb::Claim> claims(2);
    Phases phases(claims.data(), 2);
    double used[2] = {0, 0};
    unsigned asleep = 0;
    const auto member = [&](int number) {
        const double before = processor_ms();
        phases.pass(0, number, 2, false, [&](long long share) {
            if (share != 0) return;
            rest(milliseconds);
            asleep = phases.asleep();
        });
        used[number] = processor_ms() - before;
    };
    std::thread other([&] {
        member(1);
        rest(milliseconds);
        phases.leave();
    });
    member(0);
    const double before = processor_ms();
    phases.wait_for_others(1);
    const double leaving = processor_ms() - before;
    other.join();
    std::printf("%u %.3f %.3f\n", asleep, used[0] > used[1] ? used[0] : used[1], leaving);
    return 0;
}

// How many shares the first of two threads computed while the other had not come yet, and the other afterwards.
static int absent(unsigned count) {
    std::vector<mb::Claim> claims(2);
    Phases phases(claims.data(), 2);
    int shares[2] = {0, 0};
    const auto member = [&](int number) {
        for (unsigned phase = 0; phase < count; ++phase) {
            phases.pass(phase, number, 2, phase + 1 == count, [&](long long) { shares[number] += 1; });
        }
    };
    member(0);
    std::thread other([&] {
        member(1);
        phases.leave();
    });
    phases.wait_for_others(1);
    other.join();
    std::printf("%d %d\n", shares[0], shares[1]);
    return 0;
}

int main(int count, char** words) {
    const int first = count > 2 ? std::atoi(words[2]) : 0;
    if (count > 1 && std::strcmp(words[1], "late") == 0) return late(first);
    if (count > 1 && std::strcmp(words[1], "absent") == 0) return absent(static_cast<unsigned>(first));
    if (count == 5 && std::strcmp(words[1], "many") == 0) {
        return many(first, static_cast<unsigned>(std::atoi(words[3])), std::atoi(words[4]) != 0);
    }
    return 2;
}
