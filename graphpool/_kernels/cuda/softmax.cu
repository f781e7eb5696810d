// Softmax and log-softmax, a row for each block; optionally max + log(sum(exp(x - max))) of each row.

extern "C" __global__ void GP_KERNEL(const char *src, GP_STATS_ARG GP_ARGS, const Params p) {
    __shared__ float room[33];
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const long long from = gp_row_src(p, row), to = gp_row_dst(p, row);
        float most = __uint_as_float(0xff800000u);
        for (long long c = threadIdx.x; c < p.cols; c += blockDim.x)
            most = gp_max(most, gp_load_src(src, from + gp_col_src(p, c)));
        most = gp_max_block(most, room);
        // a row of nothing but -inf: its exponents are those of -inf
        const float base = most == __uint_as_float(0xff800000u) && p.inf_as_zero ? 0.0f : most;
        float sum = 0.0f;
        for (long long c = threadIdx.x; c < p.cols; c += blockDim.x)
            sum += expf(gp_load_src(src, from + gp_col_src(p, c)) - base);
        sum = gp_sum_block(sum, room);
        const float logarithm = logf(sum);
        if (threadIdx.x == 0) GP_STORE_STATS(row, base + logarithm);
        for (long long c = threadIdx.x; c < p.cols; c += blockDim.x) {
            const float x = gp_load_src(src, from + gp_col_src(p, c)) - base;
            const float y = GP_IS_LOG ? x - logarithm : sum == 0.0f && p.inf_as_zero ? 0.0f : expf(x) / sum;
            gp_program(p, to + gp_col_dst(p, c), y, GP_PASSED);
        }
    }
}
