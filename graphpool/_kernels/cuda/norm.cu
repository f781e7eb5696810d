// Layer, group and RMS norm, a row for each block; optionally the mean and variance of each row.

extern "C" __global__ void GP_KERNEL(const char *src, GP_AFFINE_ARGS GP_STATS_ARGS GP_ARGS, const Params p) {
    __shared__ float room[33];
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const long long from = gp_row_src(p, row), to = gp_row_dst(p, row);
        float sum = 0.0f;
        for (long long c = threadIdx.x; c < p.cols; c += blockDim.x)
            sum += gp_load_src(src, from + gp_col_src(p, c));
        const float mean = GP_IS_RMS ? 0.0f : gp_sum_block(sum, room) / (float)p.cols;
        float squares = 0.0f;
        for (long long c = threadIdx.x; c < p.cols; c += blockDim.x) {
            const float x = gp_load_src(src, from + gp_col_src(p, c)) - mean;
            squares = fmaf(x, x, squares);
        }
        const float variance = gp_sum_block(squares, room) / (float)p.cols;
        const float scale = 1.0f / sqrtf(variance + p.epsilon);
        if (threadIdx.x == 0) GP_STORE_STATS(row, mean, variance);
        for (long long c = threadIdx.x; c < p.cols; c += blockDim.x) {
            const float x = (gp_load_src(src, from + gp_col_src(p, c)) - mean) * scale;
            const long long i = to + gp_col_dst(p, c);
            gp_program(p, i, GP_AFFINE(x, i), GP_PASSED);
        }
    }
}
