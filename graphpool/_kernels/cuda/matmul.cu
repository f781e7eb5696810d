// A batch of matrix products, a tile of one for each block.

extern "C" __global__ void GP_KERNEL(const char *a, const char *b, GP_ARGS, const Params p) {
    GP_TILE_ROOM;
    const long long down = (p.rows + GP_TILE - 1) / GP_TILE, across = (p.cols + GP_TILE - 1) / GP_TILE;
    for (long long tile = blockIdx.x; tile < p.batch * down * across; tile += gridDim.x) {
        const long long item = tile / across / down, from_a = gp_batch_a(p, item), from_b = gp_batch_b(p, item);
        gp_multiply_tile(
            as, bs, tile / across % down * GP_TILE, tile % across * GP_TILE, p.rows, p.cols, p.depth,
            [&](long long row, long long k) { return gp_load_a(a, from_a + row * p.a_row + k * p.a_depth); },
            [&](long long k, long long col) { return gp_load_b(b, from_b + k * p.b_depth + col * p.b_col); },
            [&](long long row, long long col, float sum) {
                gp_program(p, (item * p.rows + row) * p.cols + col, sum, GP_PASSED);
            });
    }
}
