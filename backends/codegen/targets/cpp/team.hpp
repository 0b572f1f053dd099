// The threads that run a program, as its kernels see them.
//
// Place: what `launcher.cpp` and the kernels share. The launcher starts the threads, once for all kernels of a call; each
// of them calls the kernels that it shares, with its own number, and waits for the others where a kernel was, or will be,
// that several share.
#pragma once

namespace mb {

// `number` is that of the calling thread, from 0; a negative one only asks how many threads would share the kernel, which
// computes nothing then. `worth` is the work, in vector operations, that one more thread is worth. `told` is set to 1 by
// kernels that had to correct a value that came in; one that only asks needs none.
struct Team {
    long long number, count, worth;
    int* told;
};

// Returns how many threads share this call, which depends on sizes, `count` and `worth` alone: the first so many.
using Kernel = long long (*)(
    char** buffers, const long long* parameters, const double* numbers, const Team* team
);

}  // namespace mb
