static void softmax_points(char** buffers, const i64* parameters, const double* numbers, i64 first, i64 last) {
    const i64 p0 = parameters[0];
    const i64 p1 = parameters[1];
    const float* const b0 = reinterpret_cast<const float*>(buffers[0]);
    float* __restrict__ const b1 = reinterpret_cast<float*>(buffers[1]);
    const Scratch s0_memory(4);
    float* __restrict__ const s0 = reinterpret_cast<float*>(s0_memory.start());
    const Scratch s1_memory((4 * p1));
    float* __restrict__ const s1 = reinterpret_cast<float*>(s1_memory.start());
    for (i64 i0 = first; i0 < last; ++i0) {
        {
            Vec<float> a0_0 = broadcast<float>(-__builtin_inff());
            Vec<float> a0_1 = broadcast<float>(-__builtin_inff());
            Vec<float> a0_2 = broadcast<float>(-__builtin_inff());
            Vec<float> a0_3 = broadcast<float>(-__builtin_inff());
            {
                i64 i1 = 0;
                for (; i1 + 4 * lanes <= p1; i1 += 4 * lanes) {
                    const i64 i1_1 = i1 + 1 * lanes;
                    const i64 i1_2 = i1 + 2 * lanes;
                    const i64 i1_3 = i1 + 3 * lanes;
                    const auto t0 = load<float>(b0 + (i0 * p1) + i1);
                    a0_0 = maximum(t0, a0_0);
                    const auto t1 = load<float>(b0 + (i0 * p1) + i1_1);
                    a0_1 = maximum(t1, a0_1);
                    const auto t2 = load<float>(b0 + (i0 * p1) + i1_2);
                    a0_2 = maximum(t2, a0_2);
                    const auto t3 = load<float>(b0 + (i0 * p1) + i1_3);
                    a0_3 = maximum(t3, a0_3);
                }
                for (; i1 + lanes <= p1; i1 += lanes) {
                    const auto t4 = load<float>(b0 + (i0 * p1) + i1);
                    a0_0 = maximum(t4, a0_0);
                }
                if (i1 < p1) {
                    const i64 i1_rest = p1 - i1;
                    const auto t5 = load_partial<float>(b0 + (i0 * p1) + i1, i1_rest);
                    const auto t6 = first_lanes(i1_rest);
                    a0_0 = maximum(select(t6, t5, broadcast<float>(-__builtin_inff())), a0_0);
                }
            }
            const auto t7 = reduce_max(maximum(maximum(a0_0, a0_1), maximum(a0_2, a0_3)));
            store_scalar(s0, t7);
        }
        {
            Vec<float> a0_0 = broadcast<float>(0.0f);
            Vec<float> a0_1 = broadcast<float>(0.0f);
            Vec<double> a0_total_0 = broadcast<double>(0);
            {
                i64 i1 = 0;
                while (i1 + 2 * lanes <= p1) {
                    const i64 i1_stop = minimum(p1, i1 + 512 * lanes);
                    for (; i1 + 2 * lanes <= i1_stop; i1 += 2 * lanes) {
                        const i64 i1_1 = i1 + 1 * lanes;
                        const auto t0 = load<float>(b0 + (i0 * p1) + i1);
                        const auto t1 = load_scalar<float>(s0);
                        const auto t2 = sub(t0, broadcast<float>(t1));
                        const auto t3 = exp_(t2);
                        store(s1 + i1, t3);
                        a0_0 = add(t3, a0_0);
                        const auto t4 = load<float>(b0 + (i0 * p1) + i1_1);
                        const auto t5 = sub(t4, broadcast<float>(t1));
                        const auto t6 = exp_(t5);
                        store(s1 + i1_1, t6);
                        a0_1 = add(t6, a0_1);
                    }
                    if (i1 + 2 * lanes <= p1) {
                        a0_total_0 = add(a0_total_0, convert<double>(add(a0_0, a0_1)));
                        a0_0 = broadcast<float>(0.0f);
                        a0_1 = broadcast<float>(0.0f);
                    }
                }
                for (; i1 + lanes <= p1; i1 += lanes) {
                    const auto t7 = load<float>(b0 + (i0 * p1) + i1);
                    const auto t8 = load_scalar<float>(s0);
                    const auto t9 = sub(t7, broadcast<float>(t8));
                    const auto t10 = exp_(t9);
                    store(s1 + i1, t10);
                    a0_0 = add(t10, a0_0);
                }
                if (i1 < p1) {
                    const i64 i1_rest = p1 - i1;
                    const auto t11 = load_partial<float>(b0 + (i0 * p1) + i1, i1_rest);
                    const auto t12 = load_scalar<float>(s0);
                    const auto t13 = sub(t11, broadcast<float>(t12));
                    const auto t14 = exp_(t13);
                    store_partial(s1 + i1, t14, i1_rest);
                    const auto t15 = first_lanes(i1_rest);
                    a0_0 = add(select(t15, t14, broadcast<float>(0.0f)), a0_0);
                }
            }
            const auto t16 = p1 <= 512 * lanes ? reduce_sum(add(a0_0, a0_1)) : convert<float>(reduce_sum(add(a0_total_0, convert<double>(add(a0_0, a0_1)))));
            store_scalar(s0, t16);
        }
        {
            {
                i64 i1 = 0;
                const auto t1 = (p1 > 0) ? load_scalar<float>(s0) : 0.0f;
                for (; i1 + lanes <= p1; i1 += lanes) {
                    const auto t0 = load<float>(s1 + i1);
                    const auto t2 = div(t0, broadcast<float>(t1));
                    store(b1 + (i0 * p1) + i1, t2);
                }
                if (i1 < p1) {
                    const i64 i1_rest = p1 - i1;
                    const auto t3 = load_partial<float>(s1 + i1, i1_rest);
                    const auto t4 = div(t3, broadcast<float>(t1));
                    store_partial(b1 + (i0 * p1) + i1, t4, i1_rest);
                }
            }
        }
    }
}

extern "C" i64 softmax(char** buffers, const i64* parameters, const double* numbers, const Team* team) {
    const i64 p0 = parameters[0];
    const i64 p1 = parameters[1];
    return share_points(*team, p0, 10000000, [=](i64 first, i64 last) { softmax_points(buffers, parameters, numbers, first, last); });
}
