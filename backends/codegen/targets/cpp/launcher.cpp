// Runs the kernels of a program with one call.
//
// Place: compiled once per machine by `launcher.py`; generated code knows nothing of it.
// Input: a table that is never written, and the addresses of this call's tensors. Output: whether kernels told that a value
// that came in had to be corrected. Invariants: no state, so any number of threads may run one program at once. Threads start at most once in a call, if a kernel is worth it, and as many as
// the largest takes; where there is no OpenMP everything runs on the calling thread.
#include "phases.hpp"
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

// Calls from one place up to another: one that several threads share, or all in a row that one thread runs alone.
struct Step {
    i64 end, shares;
};

static Step step_from(const Program& program, char* const* addresses, i64 place, const Team& team) {
    const Team asking = {asked, team.count, team.worth, nullptr};
    const i64 shares = run(program, addresses, place, asking);
    i64 end = place + 1;
    if (shares > 1) return {end, shares};
    while (end < program.call_count && end != program.telling && run(program, addresses, end, asking) <= 1) ++end;
    return {end, 1};
}

// What one thread of several does.
static void run_shared(const Program& program, char* const* addresses, const Team& team, mb::Phases& phases) {
    unsigned phase = 0;
    for (i64 place = 0; place < program.call_count; ++phase) {
        // All threads see the same here: nobody tells any more.
        if (place == program.telling && place > 0 && __atomic_load_n(team.told, __ATOMIC_RELAXED)) break;
        const Step step = step_from(program, addresses, place, team);
        const auto compute = [&](i64 share) {
            for (i64 call = place; call < step.end; ++call) {
                run(program, addresses, call, {share, team.count, team.worth, team.told});
            }
        };
        phases.pass(phase, team.number, step.shares, step.end == program.call_count, compute);
        place = step.end;
    }
    if (team.number != 0) {
        phases.leave();
    } else {
        phases.wait_for_others(static_cast<unsigned>(team.count - 1));
    }
}

static void run_alone(const Program& program, char* const* addresses, int* told) {
    for (i64 place = 0; place < program.call_count; ++place) {
        if (place == program.telling && place > 0 && *told) return;
        run(program, addresses, place, {0, 1, worth_starting, told});
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
        run_alone(*program, addresses, &told);
        return told;
    }
#ifdef _OPENMP
    mb::Claim claims[threads];
    mb::Phases phases(claims, threads);
#pragma omp parallel num_threads(static_cast<int>(threads))
    run_shared(*program, addresses, {omp_get_thread_num(), omp_get_num_threads(), worth_sharing, &told}, phases);
#endif
    return told;
}
