extern "C" i64 cumsum_rows(char** buffers, const i64* parameters, const double* numbers, const Team* team) {
    if (team->number != 0) return 1;
    const i64 p0 = parameters[0];
    const i64 p1 = parameters[1];
    const float* const b0 = reinterpret_cast<const float*>(buffers[0]);
    float* __restrict__ const b1 = reinterpret_cast<float*>(buffers[1]);
    for (i64 i0 = 0; i0 < p0; ++i0) {
        Vec<double> c0_0 = broadcast<double>(0.0);
        {
            i64 i1 = 0;
            for (; i1 + lanes <= p1; i1 += lanes) {
                const auto t0 = load<float>(b0 + (p1 * i0) + i1);
                const auto t1 = convert<float>(running_sum(c0_0, convert<double>(t0), 0.0));
                store(b1 + (p1 * i0) + i1, t1);
            }
            if (i1 < p1) {
                const i64 i1_rest = p1 - i1;
                const auto t2 = load_partial<float>(b0 + (p1 * i0) + i1, i1_rest);
                const auto t3 = convert<float>(running_sum(c0_0, convert<double>(t2), 0.0));
                store_partial(b1 + (p1 * i0) + i1, t3, i1_rest);
            }
        }
    }
    return 1;
}
