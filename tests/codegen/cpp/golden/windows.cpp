extern "C" i64 windows(char** buffers, const i64* parameters, const double* numbers, const Team* team) {
    if (team->number != 0) return 1;
    const i64 p0 = parameters[0];
    const float* const b0 = reinterpret_cast<const float*>(buffers[0]);
    const i16* const b1 = reinterpret_cast<const i16*>(buffers[1]);
    float* __restrict__ const b2 = reinterpret_cast<float*>(buffers[2]);
    {
        i64 i0 = 0;
        const auto t6 = i64((2 * p0) - 4);
        for (; i0 + lanes <= p0; i0 += lanes) {
            const auto t0 = add(mul(broadcast<i64>(2), iota<i64>(i0)), broadcast<i64>(-1));
            const auto t1 = not_(lanes_below(floor_div((-2 * i0) + 2, 2ll)));
            const auto t2 = lanes_below(floor_div((-2 * i0) + 42, 2ll));
            const auto t3 = and_(t1, t2);
            const auto t4 = load_even_masked<float>(b0 + (2 * i0) - 1, t3, -2.0f);
            const auto t5 = add(mul(broadcast<i64>(2), iota<i64>(i0)), broadcast<i64>(3));
            const auto t7 = lanes_below(floor_div((2 * p0) - (2 * i0) - 5, 2ll));
            const auto t8 = load_even_masked<float>(b0 + (2 * i0) + 3, t7, -3.0f);
            const auto t9 = add(t4, t8);
            const auto t10 = add(iota<i64>(i0), broadcast<i64>(9));
            const auto t11 = not_(lanes_below((2 * p0) - i0 - 12));
            const auto t12 = load_even<float>(b0 + (2 * i0));
            const auto t13 = load_backwards<i32>(b1 + p0 - i0 - 1);
            const auto t14 = convert<float>(t13);
            const auto t15 = select(t11, t12, t14);
            const auto t16 = maximum(t9, t15);
            store(b2 + i0, t16);
        }
        if (i0 < p0) {
            const i64 i0_rest = p0 - i0;
            const auto t17 = add(mul(broadcast<i64>(2), iota<i64>(i0)), broadcast<i64>(-1));
            const auto t18 = not_(lanes_below(floor_div((-2 * i0) + 2, 2ll)));
            const auto t19 = lanes_below(floor_div((-2 * i0) + 42, 2ll));
            const auto t20 = and_(t18, t19);
            const auto t21 = first_lanes(i0_rest);
            const auto t22 = load_even_masked<float>(b0 + (2 * i0) - 1, and_(t20, t21), -2.0f);
            const auto t23 = add(mul(broadcast<i64>(2), iota<i64>(i0)), broadcast<i64>(3));
            const auto t24 = lanes_below(floor_div((2 * p0) - (2 * i0) - 5, 2ll));
            const auto t25 = load_even_masked<float>(b0 + (2 * i0) + 3, and_(t24, t21), -3.0f);
            const auto t26 = add(t22, t25);
            const auto t27 = add(iota<i64>(i0), broadcast<i64>(9));
            const auto t28 = not_(lanes_below((2 * p0) - i0 - 12));
            const auto t29 = load_even_partial<float>(b0 + (2 * i0), i0_rest);
            const auto t30 = load_strided_partial<i32>(b1 + p0 - i0 - 1, -1, i0_rest);
            const auto t31 = convert<float>(t30);
            const auto t32 = select(t28, t29, t31);
            const auto t33 = maximum(t26, t32);
            store_partial(b2 + i0, t33, i0_rest);
        }
    }
    return 1;
}
