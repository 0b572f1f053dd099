static void row_sum_points(char** buffers, const i64* parameters, const double* numbers, i64 first, i64 last) {
    const i64 p0 = parameters[0];
    const i64 p1 = parameters[1];
    const float* const b0 = reinterpret_cast<const float*>(buffers[0]);
    float* __restrict__ const b1 = reinterpret_cast<float*>(buffers[1]);
    for (i64 i0 = first; i0 < last; ++i0) {
        Vec<float> a0_0 = broadcast<float>(0.0f);
        Vec<float> a0_1 = broadcast<float>(0.0f);
        Vec<float> a0_2 = broadcast<float>(0.0f);
        Vec<float> a0_3 = broadcast<float>(0.0f);
        Vec<double> a0_total_0 = broadcast<double>(0);
        {
            i64 i1 = 0;
            while (i1 + 4 * lanes <= p1) {
                const i64 i1_stop = minimum(p1, i1 + 1024 * lanes);
                for (; i1 + 4 * lanes <= i1_stop; i1 += 4 * lanes) {
                    const i64 i1_1 = i1 + 1 * lanes;
                    const i64 i1_2 = i1 + 2 * lanes;
                    const i64 i1_3 = i1 + 3 * lanes;
                    const auto t0 = load<float>(b0 + (i0 * p1) + i1);
                    a0_0 = add(t0, a0_0);
                    const auto t1 = load<float>(b0 + (i0 * p1) + i1_1);
                    a0_1 = add(t1, a0_1);
                    const auto t2 = load<float>(b0 + (i0 * p1) + i1_2);
                    a0_2 = add(t2, a0_2);
                    const auto t3 = load<float>(b0 + (i0 * p1) + i1_3);
                    a0_3 = add(t3, a0_3);
                }
                if (i1 + 4 * lanes <= p1) {
                    a0_total_0 = add(a0_total_0, convert<double>(add(add(a0_0, a0_1), add(a0_2, a0_3))));
                    a0_0 = broadcast<float>(0.0f);
                    a0_1 = broadcast<float>(0.0f);
                    a0_2 = broadcast<float>(0.0f);
                    a0_3 = broadcast<float>(0.0f);
                }
            }
            for (; i1 + lanes <= p1; i1 += lanes) {
                const auto t4 = load<float>(b0 + (i0 * p1) + i1);
                a0_0 = add(t4, a0_0);
            }
            if (i1 < p1) {
                const i64 i1_rest = p1 - i1;
                const auto t5 = load_partial<float>(b0 + (i0 * p1) + i1, i1_rest);
                const auto t6 = first_lanes(i1_rest);
                a0_0 = add(select(t6, t5, broadcast<float>(0.0f)), a0_0);
            }
        }
        const auto t7 = p1 <= 1024 * lanes ? reduce_sum(add(add(a0_0, a0_1), add(a0_2, a0_3))) : convert<float>(reduce_sum(add(a0_total_0, convert<double>(add(add(a0_0, a0_1), add(a0_2, a0_3))))));
        store_scalar(b1 + i0, t7);
    }
}

extern "C" i64 row_sum(char** buffers, const i64* parameters, const double* numbers, const Team* team) {
    const i64 p0 = parameters[0];
    const i64 p1 = parameters[1];
    return share_points(*team, p0, 10000000, [=](i64 first, i64 last) { row_sum_points(buffers, parameters, numbers, first, last); });
}
