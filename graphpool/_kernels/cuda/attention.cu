// Attention, 64 queries and 64 columns of the values for each block, without a matrix of scores: over tiles of keys goes
// a running softmax. Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
// "FlashAttention", 2022.

extern "C" __global__ void GP_KERNEL(const char *q, const char *k, const char *v, GP_SCORE_ARGS GP_ARGS,
                                     const Params p) {
    GP_TILE_ROOM(4, 4);
    __shared__ float scores[GP_TILE][GP_TILE + 1], rates[GP_TILE];
    const int thread = threadIdx.x, across = thread % 16, down = thread / 16, own = thread / 4, part = thread % 4;
    const float least = __uint_as_float(0xff800000u);
    const long long row_tiles = (p.rows + GP_TILE - 1) / GP_TILE, col_tiles = (p.cols + GP_TILE - 1) / GP_TILE;
    for (long long tile = blockIdx.x; tile < p.heads * row_tiles * col_tiles; tile += gridDim.x) {
        const long long head = tile / col_tiles / row_tiles, first_row = tile / col_tiles % row_tiles * GP_TILE;
        const long long first_col = tile % col_tiles * GP_TILE;
        const long long from_q = gp_head_q(p, head), from_k = gp_head_k(p, head), from_v = gp_head_v(p, head);
        float sums[4][4] = {}, most = least, total = 0.0f;  // the last two of the row `own`, on four threads alike
        for (long long begin = 0; begin < p.keys; begin += GP_TILE) {
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) scores[down + 16 * i][across + 16 * j] = least;
            gp_multiply_tile<4, 4>(
                as, bs, first_row, begin, p.rows, p.keys, p.depth, [](long long) {},
                [&](long long row, long long d) { return gp_load_q(q, from_q + row * p.q_row + d * p.q_depth); },
                [&](long long key) {
                    const long long from = from_k + key * p.k_row;
                    return [&p, k, from](long long d) { return gp_load_k(k, from + d * p.k_depth); };
                },
                [&](long long row, long long key, float x) {
                    GP_SCORE;
                    scores[row - first_row][key - begin] = x;
                });
            __syncthreads();
            float here = least;
            for (int c = part; c < GP_TILE; c += 4) here = gp_max(here, scores[own][c]);
            for (int step = 1; step < 4; step *= 2) here = gp_max(here, __shfl_xor_sync(GP_ALL_LANES, here, step));
            const float next = gp_max(most, here), base = next == least ? 0.0f : next, rate = expf(most - base);
            float sum = 0.0f;
            for (int c = part; c < GP_TILE; c += 4) sum += scores[own][c] = expf(scores[own][c] - base);
            for (int step = 1; step < 4; step *= 2) sum += __shfl_xor_sync(GP_ALL_LANES, sum, step);
            total = total * rate + sum;
            most = next;
            if (part == 0) rates[own] = rate;
            __syncthreads();
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sums[i][j] *= rates[down + 16 * i];
            for (int chunk = 0; chunk < GP_TILE; chunk += GP_DEPTH) {
                for (int e = thread; e < GP_TILE * GP_DEPTH; e += GP_TILE_THREADS) {
                    const long long key = begin + chunk + e / GP_TILE, col = first_col + e % GP_TILE;
                    const bool is_inside = key < p.keys && col < p.cols;
                    bs[0][e / GP_TILE][e % GP_TILE] =
                        is_inside ? gp_load_v(v, from_v + key * p.v_row + col * p.v_col) : 0.0f;
                }
                __syncthreads();
#pragma unroll
                for (int d = 0; d < GP_DEPTH; d++)
                    for (int i = 0; i < 4; i++)
                        for (int j = 0; j < 4; j++)
                            sums[i][j] = fmaf(scores[down + 16 * i][chunk + d], bs[0][d][across + 16 * j], sums[i][j]);
                __syncthreads();
            }
        }
        if (part == 0) rates[own] = total;
        if (part == 0 && first_col == 0 && first_row + own < p.rows)
            GP_STORE_STATS(head * p.rows + first_row + own, most + logf(total));
        __syncthreads();
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                const long long row = first_row + down + 16 * i, col = first_col + across + 16 * j;
                const float whole = rates[down + 16 * i];
                const float y = whole == 0.0f && p.inf_as_zero ? 0.0f : sums[i][j] / whole;
                if (row < p.rows && col < p.cols) gp_program(p, (head * p.rows + row) * p.cols + col, y, GP_PASSED);
            }
        __syncthreads();
    }
}
