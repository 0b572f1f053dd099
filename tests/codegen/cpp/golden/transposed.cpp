extern "C" i64 transposed(char** buffers, const i64* parameters, const double* numbers, const Team* team) {
    if (team->number != 0) return 1;
    const i64 p0 = parameters[0];
    const i64 p1 = parameters[1];
    const float* const b0 = reinterpret_cast<const float*>(buffers[0]);
    float* __restrict__ const b1 = reinterpret_cast<float*>(buffers[1]);
    {
        i64 i1_first = 0;
        for (; i1_first + lanes <= p1; i1_first += lanes) {
            {
                i64 i0 = 0;
                for (; i0 + lanes <= p0; i0 += lanes) {
                    Vec<float> x0[lanes];
                    load_turned(x0, b0 + i1_first + (p1 * i0), p1);
                    #pragma GCC unroll 16
                    for (i64 i1 = i1_first; i1 < i1_first + lanes; ++i1) {
                        store(b1 + i0 + (p0 * i1), x0[i1 - i1_first]);
                    }
                }
                if (i0 < p0) {
                    const i64 i0_rest = p0 - i0;
                    #pragma GCC unroll 16
                    for (i64 i1 = i1_first; i1 < i1_first + lanes; ++i1) {
                        const auto t0 = load_strided_partial<float>(b0 + (p1 * i0) + i1, p1, i0_rest);
                        store_partial(b1 + i0 + (p0 * i1), t0, i0_rest);
                    }
                }
            }
        }
        for (i64 i1 = i1_first; i1 < p1; ++i1) {
            {
                i64 i0 = 0;
                for (; i0 + lanes <= p0; i0 += lanes) {
                    const auto t1 = load_strided<float>(b0 + i1 + (p1 * i0), p1);
                    store(b1 + (p0 * i1) + i0, t1);
                }
                if (i0 < p0) {
                    const i64 i0_rest = p0 - i0;
                    const auto t2 = load_strided_partial<float>(b0 + i1 + (p1 * i0), p1, i0_rest);
                    store_partial(b1 + (p0 * i1) + i0, t2, i0_rest);
                }
            }
        }
    }
    return 1;
}
