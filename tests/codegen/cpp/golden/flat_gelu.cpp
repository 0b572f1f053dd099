extern "C" i64 flat_gelu(char** buffers, const i64* parameters, const double* numbers, const Team* team) {
    if (team->number != 0) return 1;
    const i64 p0 = parameters[0];
    const float* const b0 = reinterpret_cast<const float*>(buffers[0]);
    const float* const b1 = reinterpret_cast<const float*>(buffers[1]);
    float* __restrict__ const b2 = reinterpret_cast<float*>(buffers[2]);
    {
        i64 i0 = 0;
        for (; i0 + lanes <= p0; i0 += lanes) {
            const auto t0 = load<float>(b0 + i0);
            const auto t1 = mul(t0, broadcast<float>(0.5f));
            const auto t2 = mul(t0, broadcast<float>(0.7071067690849304f));
            const auto t3 = erf_(t2);
            const auto t4 = add(t3, broadcast<float>(1.0f));
            const auto t5 = mul(t1, t4);
            store(b2 + i0, t5);
        }
        if (i0 < p0) {
            const i64 i0_rest = p0 - i0;
            const auto t6 = load_partial<float>(b0 + i0, i0_rest);
            const auto t7 = mul(t6, broadcast<float>(0.5f));
            const auto t8 = mul(t6, broadcast<float>(0.7071067690849304f));
            const auto t9 = erf_(t8);
            const auto t10 = add(t9, broadcast<float>(1.0f));
            const auto t11 = mul(t7, t10);
            store_partial(b2 + i0, t11, i0_rest);
        }
    }
    return 1;
}
