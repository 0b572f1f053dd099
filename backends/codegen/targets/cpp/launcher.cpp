// Runs the kernels of a program with one call.
//
// Place: compiled once per machine by `launcher.py`; generated code knows nothing of it.
// Input: a table that is never written, and the addresses of this call's tensors. Output: whether kernels told that a value
// that came in had to be corrected. Invariants: no state, so any number of threads may run one program at once. Threads start at most once in a call, if a kernel is worth it, and as many as
// the largest takes; where there is no OpenMP everything runs on the calling thread.
#include "team.hpp"

#ifdef _OPENMP
extern "C" int omp_get_max_threads();
extern "C" int omp_get_num_threads();
extern "C" int omp_get_thread_num();
extern "C" int omp_in_parallel();
#endif

using i64 = long long;
using mb::Team;

struct Call {
    mb::Kernel kernel;
    i64 first_slot, slot_count, first_parameter, first_number;
};

// A slot below `tensor_count` is a tensor; the others are pieces of the workspace, which is the last address.
struct Program {
    i64 call_count, tensor_count;
    const Call* calls;
    const i64* slots;
    const i64* starts;
    const i64* parameters;
    const double* numbers;
    // Calls that may tell come before this one; it and those after it are not made if something was told.
    i64 telling;
};

// Vector operations that are worth starting threads, and those that are worth having one that runs take part.
constexpr i64 worth_starting = 32768, worth_sharing = 4096;
constexpr i64 asked = -1;

static i64 threads_at_most() {
#ifdef _OPENMP
    return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
    return 1;
#endif
}

// Returns once all threads of the team have come here.
static void wait_for_all() {
#ifdef _OPENMP
#pragma omp barrier
#endif
}

// A kernel, with the addresses of its memory.
static __attribute__((noinline)) i64 run(const Program& program, char* const* addresses, i64 place, const Team& team) {
    const Call call = program.calls[place];
    char* const workspace = addresses[program.tensor_count];
    char** buffers = static_cast<char**>(__builtin_alloca(static_cast<unsigned long>(call.slot_count) * sizeof(char*)));
    for (i64 index = 0; index < call.slot_count; ++index) {
        const i64 slot = program.slots[call.first_slot + index];
        const i64 piece = slot - program.tensor_count;
        buffers[index] = piece < 0 ? addresses[slot] : workspace + program.starts[piece];
    }
    return call.kernel(buffers, program.parameters + call.first_parameter, program.numbers + call.first_number, &team);
}

// What one thread does. Between kernels of the first thread alone nobody waits.
static void run_all(const Program& program, char* const* addresses, const Team& team) {
    i64 before = 1;
    for (i64 place = 0; place < program.call_count; ++place) {
        const i64 now = team.count == 1 ? 1 : run(program, addresses, place, {asked, team.count, team.worth, nullptr});
        const bool looks = place == program.telling && place > 0;
        if (place > 0 && (before > 1 || now > 1 || (looks && team.count > 1))) wait_for_all();
        // All threads see the same here: nobody tells any more.
        if (looks && __atomic_load_n(team.told, __ATOMIC_RELAXED)) return;
        if (team.number < now) run(program, addresses, place, team);
        before = now;
    }
}

extern "C" int mb_function(const Program* program, char* const* addresses) {
    const i64 limit = threads_at_most();
    int told = 0;
    i64 threads = 1;
    for (i64 place = 0; place < program->call_count && threads < limit; ++place) {
        const i64 wanted = run(*program, addresses, place, {asked, limit, worth_starting, nullptr});
        threads = wanted > threads ? wanted : threads;
    }
    if (threads == 1) {
        run_all(*program, addresses, {0, 1, worth_starting, &told});
        return told;
    }
#ifdef _OPENMP
#pragma omp parallel num_threads(static_cast<int>(threads))
    run_all(*program, addresses, {omp_get_thread_num(), omp_get_num_threads(), worth_sharing, &told});
#endif
    return told;
}
