// A reduction, one result for each block.

extern "C" __global__ void GP_KERNEL(const char *src, GP_ARGS, const Params p) {
    __shared__ GP_REG room[33];
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const long long from = gp_row_src(p, row);
        GP_REG result = GP_NEUTRAL;
        for (long long c = threadIdx.x; c < p.cols; c += blockDim.x) {
            const GP_REG x = gp_load_src(src, from + gp_col_src(p, c));
            result = GP_JOIN(result, GP_ELEMENT(x));
        }
        result = gp_join_block(result, (GP_REG)GP_NEUTRAL, room, [](GP_REG a, GP_REG b) { return GP_JOIN(a, b); });
        if (threadIdx.x == 0) gp_program(p, row, GP_RESULT(result), GP_PASSED);
    }
}
