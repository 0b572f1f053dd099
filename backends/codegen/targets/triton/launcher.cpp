// Launches the kernels of a program with one call.
//
// Place: compiled once per machine by `launcher.py`; generated code knows nothing of it. CUDA's driver and HIP's have
// the same function under two names, so that no header of either is needed; what is asked of CUDA's alone is written
// out as its manual has it.
// Input: a table that is never written, the addresses of this call's tensors, and a stream. Output: 0, -1 if an address
// is not aligned (nothing was launched then), or the driver's error.
// Invariants: no state, so any number of threads may launch one program at once.

using i64 = long long;
using Launch = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                       void* stream, void** arguments, void** extra);

// How CUDA's driver is told of a launch in one piece. The attribute lets a kernel start while the one before it on the
// stream still runs.
struct Attribute {
    int kind;
    char gap[4];
    union {
        int allowed;
        char size[64];
    };
};

struct Configuration {
    unsigned grid[3], block[3], shared;
    void* stream;
    Attribute* attributes;
    unsigned attribute_count;
};

using LaunchEarly = int (*)(const Configuration*, void* function, void** arguments, void** extra);

constexpr int programmatic_stream_serialization = 6;

struct Call {
    void* function;
    i64 threads, shared, early;
    i64 first_slot, slot_count, first_value, value_count, first_number, number_count;
};

// A slot below `tensor_count` is a tensor; the others are pieces of the workspace, which is the last address.
// The first value of a call is its number of blocks; its arguments follow.
struct Program {
    Launch launch;
    LaunchEarly launch_early;
    i64 call_count, tensor_count, alignment;
    const Call* calls;
    const i64* slots;
    const i64* starts;
    const i64* values;
    const double* numbers;
};

static int launch(const Program& program, const Call& call, i64 blocks, void* stream, void** arguments) {
    const auto grid = static_cast<unsigned>(blocks), block = static_cast<unsigned>(call.threads);
    const auto shared = static_cast<unsigned>(call.shared);
    if (!call.early || program.launch_early == nullptr) {
        return program.launch(call.function, grid, 1, 1, block, 1, 1, shared, stream, arguments, nullptr);
    }
    Attribute attribute{programmatic_stream_serialization, {}, {1}};
    const Configuration configuration{{grid, 1, 1}, {block, 1, 1}, shared, stream, &attribute, 1};
    return program.launch_early(&configuration, call.function, arguments, nullptr);
}

extern "C" int mb_function(const Program* program, char* const* addresses, void* stream) {
    for (i64 place = 0; place < program->tensor_count; ++place) {
        if (reinterpret_cast<i64>(addresses[place]) % program->alignment != 0) return -1;
    }
    char* const workspace = addresses[program->tensor_count];
    for (i64 place = 0; place < program->call_count; ++place) {
        const Call& call = program->calls[place];
        const i64* values = program->values + call.first_value;
        if (values[0] == 0) continue;
        // Triton's kernels take two pointers more, to memory of their own that ours have none of.
        const i64 count = call.slot_count + call.value_count - 1 + call.number_count + 2;
        const auto bytes = static_cast<unsigned long>(count) * sizeof(void*);
        void** arguments = static_cast<void**>(__builtin_alloca(bytes));
        char** buffers = static_cast<char**>(__builtin_alloca(bytes));
        i64 next = 0;
        for (i64 index = 0; index < call.slot_count; ++index) {
            const i64 slot = program->slots[call.first_slot + index];
            const i64 piece = slot - program->tensor_count;
            buffers[index] = piece < 0 ? addresses[slot] : workspace + program->starts[piece];
            arguments[next++] = &buffers[index];
        }
        for (i64 index = 1; index < call.value_count; ++index) arguments[next++] = const_cast<i64*>(values + index);
        for (i64 index = 0; index < call.number_count; ++index) {
            arguments[next++] = const_cast<double*>(program->numbers + call.first_number + index);
        }
        buffers[call.slot_count] = nullptr;
        arguments[next++] = &buffers[call.slot_count];
        arguments[next++] = &buffers[call.slot_count];
        const int error = launch(*program, call, values[0], stream, arguments);
        if (error != 0) return error;
    }
    return 0;
}
