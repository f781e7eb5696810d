// A tile of a matrix product in f32: 64 x 64 sums by 256 threads of 4 x 4 each, operands staged 16 columns at a time.

#define GP_TILE 64
#define GP_DEPTH 16
#define GP_TILE_THREADS 256
#define GP_TILE_ROOM __shared__ float as[GP_DEPTH][GP_TILE + 1], bs[GP_DEPTH][GP_TILE]

// Sums over k in [0, depth) of a(row, k) * b(k, col) go to done(row, col, sum), for rows and columns of the tile that
// are less than `rows` and `cols`. `as` and `bs` are shared memory, which may be used again at once.
template <class A, class B, class Done>
static __device__ __forceinline__ void gp_multiply_tile(
    float (*as)[GP_TILE + 1], float (*bs)[GP_TILE], long long first_row, long long first_col, long long rows,
    long long cols, long long depth, const A &a, const B &b, const Done &done) {
    const int thread = threadIdx.x, across = thread % 16, down = thread / 16;
    float sums[4][4] = {};
    for (long long begin = 0; begin < depth; begin += GP_DEPTH) {
        for (int e = thread; e < GP_TILE * GP_DEPTH; e += GP_TILE_THREADS) {
            const long long row = first_row + e / GP_DEPTH, k = begin + e % GP_DEPTH;
            as[e % GP_DEPTH][e / GP_DEPTH] = row < rows && k < depth ? a(row, k) : 0.0f;
        }
        for (int e = thread; e < GP_TILE * GP_DEPTH; e += GP_TILE_THREADS) {
            const long long col = first_col + e % GP_TILE, k = begin + e / GP_TILE;
            bs[e / GP_TILE][e % GP_TILE] = col < cols && k < depth ? b(k, col) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < GP_DEPTH; k++) {
            float left[4], right[4];
            for (int i = 0; i < 4; i++) left[i] = as[k][down + 16 * i];
            for (int j = 0; j < 4; j++) right[j] = bs[k][across + 16 * j];
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const long long row = first_row + down + 16 * i, col = first_col + across + 16 * j;
            if (row < rows && col < cols) done(row, col, sums[i][j]);
        }
}
