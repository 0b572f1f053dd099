// Everything generated kernels are written in: vectors, arithmetic, memory, reductions, elementary functions.
//
// Place: included by every generated module; MB_VECTOR_BYTES (16, 32 or 64) comes from the build.
// Non-goals: anything that knows of kernels, loops or threads.
#pragma once
#include "types.hpp"

#include "convert.hpp"

#include "arithmetic.hpp"

#include "memory.hpp"

#include "reduce.hpp"

#include "math.hpp"
