// Runs the kernels of a program with one call.
//
// Place: compiled once per machine by `launcher.py`; generated code knows nothing of it.
// Input: a table that is never written, and the addresses of this call's tensors. Invariants: no state, so any number
// of threads may run one program at once.

using i64 = long long;
using Kernel = void (*)(char** buffers, const i64* parameters, const double* numbers);

struct Call {
    Kernel kernel;
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
};

extern "C" void mb_function(const Program* program, char* const* addresses) {
    char* const workspace = addresses[program->tensor_count];
    for (i64 place = 0; place < program->call_count; ++place) {
        const Call call = program->calls[place];
        const auto bytes = static_cast<unsigned long>(call.slot_count) * sizeof(char*);
        char** buffers = static_cast<char**>(__builtin_alloca(bytes));
        for (i64 index = 0; index < call.slot_count; ++index) {
            const i64 slot = program->slots[call.first_slot + index];
            const i64 piece = slot - program->tensor_count;
            buffers[index] = piece < 0 ? addresses[slot] : workspace + program->starts[piece];
        }
        call.kernel(buffers, program->parameters + call.first_parameter, program->numbers + call.first_number);
    }
}
