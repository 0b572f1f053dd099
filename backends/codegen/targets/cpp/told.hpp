// What kernels tell of the values that they are given: whether one had to be corrected, an index that was out of range or
// a divisor that was zero.
//
// Place: included by `kernel.hpp`; a kernel that checks has one `Told` for all points of a thread.
// Invariants: nothing branches and nothing is shared before the kernel is done: differences are collected in a register.
#pragma once
#include "rearranged.hpp"
#include "team.hpp"

namespace mb {

class Told {
  public:
    explicit Told(const Team& team) : told_(team.told) {}
    ~Told() {
        native_i32 any = narrow_;
        i64 lanes_of[half_lanes];
        __builtin_memcpy(lanes_of, &wide_, sizeof(wide_));
        i64 all = one_;
        for (int lane = 0; lane < lanes; ++lane) all |= any[lane];
        for (int lane = 0; lane < half_lanes; ++lane) all |= lanes_of[lane];
        if (all) __atomic_store_n(told_, 1, __ATOMIC_RELAXED);
    }
    Told(const Told&) = delete;
    Told& operator=(const Told&) = delete;

    // The value; told if it differs from what was given, in any lane.
    MB_INLINE_MEMBER i64 corrected(i64 value, i64 given) {
        one_ |= value ^ given;
        return value;
    }
    MB_INLINE_MEMBER i32 corrected(i32 value, i32 given) {
        one_ |= value ^ given;
        return value;
    }
    MB_INLINE_MEMBER Vec<i32> corrected(Vec<i32> value, Vec<i32> given) {
        narrow_ |= value.v ^ given.v;
        return value;
    }
    MB_INLINE_MEMBER Vec<i64> corrected(Vec<i64> value, Vec<i64> given) {
        wide_ |= (value.low ^ given.low) | (value.high ^ given.high);
        return value;
    }

  private:
    int* told_;
    i64 one_ = 0;
    native_i32 narrow_ = {};
    native_i64 wide_ = {};
};

}  // namespace mb
