// A batch of matrix products, a tile of one for each block.

extern "C" __global__ void GP_KERNEL(const char *a, const char *b, GP_ARGS, const Params p) {
    GP_TILE_ROOM(GP_DOWN, GP_ACROSS);
    const int high = 16 * GP_DOWN, wide = 16 * GP_ACROSS;
    const long long down = (p.rows + high - 1) / high, across = (p.cols + wide - 1) / wide;
    for (long long tile = blockIdx.x; tile < p.batch * down * across; tile += gridDim.x) {
        const long long item = tile / across / down, from_a = gp_batch_a(p, item), from_b = gp_batch_b(p, item);
        const GP_INDEX first_row = tile / across % down * high, first_col = tile % across * wide;
        const GP_INDEX rows = p.rows, cols = p.cols, depth = p.depth, a_row = p.a_row, a_depth = p.a_depth;
        const GP_INDEX b_depth = p.b_depth, b_col = p.b_col;
        gp_multiply_tile<GP_DOWN, GP_ACROSS>(
            as, bs, first_row, first_col, rows, cols, depth, [](GP_INDEX) {},
            [&](GP_INDEX row, GP_INDEX k) { return gp_load_a(a, from_a + (row * a_row + k * a_depth)); },
            [&](GP_INDEX col) {
                return [&, col](GP_INDEX k) { return gp_load_b(b, from_b + (col * b_col + k * b_depth)); };
            },
            [&](GP_INDEX row, GP_INDEX col, float sum) {
                gp_program(p, (item * p.rows + row) * p.cols + col, sum, GP_PASSED);
            });
    }
}
