// A tile of a matrix product in f32: 16 x 16 threads of DOWN x ACROSS sums, operands staged 16 columns at a time.

#define GP_TILE 64
#define GP_DEPTH 16
#define GP_TILE_THREADS 256
#define GP_TILE_ROOM(down, across) \
    alignas(16) __shared__ float as[2][GP_DEPTH][16 * (down) + 4], bs[2][GP_DEPTH][16 * (across)]

// Sums over k in [0, depth) of a(row, k) * b(col)(k) go to done(row, col, sum), for rows and columns of the tile that
// are less than `rows` and `cols`; a tile has 16 DOWN rows and 16 ACROSS columns. b(col) is asked once, for the column
// that a thread stages. All threads call prepare(k) for 0, GP_DEPTH, ... in turn, each before k to k + GP_DEPTH - 1 are
// read, a barrier between. The next columns are read from memory while those before are multiplied. `as` and `bs` are
// shared memory, which may be used again at once. Rows and columns beyond
// the end are those before it, so that no thread branches around a load.
template <int DOWN, int ACROSS, class I, class Prepare, class A, class B, class Done>
static __device__ __forceinline__ void gp_multiply_tile(
    float (*as)[GP_DEPTH][16 * DOWN + 4], float (*bs)[GP_DEPTH][16 * ACROSS], I first_row, I first_col, I rows, I cols, I depth,
    const Prepare &prepare, const A &a, const B &b, const Done &done) {
    const int thread = threadIdx.x, tile = 16 * ACROSS;
    const int across = thread % 16 * (ACROSS < 4 ? ACROSS : 4), down = thread / 16 * (DOWN < 4 ? DOWN : 4);
    const I col = first_col + thread % tile;
    const auto column = b(col < cols ? col : cols - 1);
    float sums[DOWN][ACROSS] = {}, left[DOWN], right[ACROSS];
    const auto read = [&](I begin) {
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
            const I row = first_row + thread / GP_DEPTH + 16 * i, k = begin + thread % GP_DEPTH;
            const float x = a(row < rows ? row : rows - 1, k < depth ? k : depth - 1);
            left[i] = k < depth ? x : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < ACROSS; i++) {
            const I other = begin + thread / tile + i * (GP_TILE_THREADS / tile);
            const float x = column(other < depth ? other : depth - 1);
            right[i] = other < depth ? x : 0.0f;
        }
    };
    const auto stage = [&](int to) {
#pragma unroll
        for (int i = 0; i < DOWN; i++) as[to][thread % GP_DEPTH][thread / GP_DEPTH + 16 * i] = left[i];
#pragma unroll
        for (int i = 0; i < ACROSS; i++)
            bs[to][thread / tile + i * (GP_TILE_THREADS / tile)][thread % tile] = right[i];
    };
    prepare(0);
    __syncthreads();
    if (depth > 0) read(0), stage(0);
    int now = 0;
    for (I begin = 0; begin < depth; begin += GP_DEPTH, now ^= 1) {
        prepare(begin + GP_DEPTH);
        __syncthreads();
        if (begin + GP_DEPTH < depth) read(begin + GP_DEPTH);
#pragma unroll
        for (int k = 0; k < GP_DEPTH; k++) {
            float x[DOWN], y[ACROSS];
            for (int i = 0; i < DOWN; i++) x[i] = as[now][k][down + i / 4 * 64 + i % 4];
            for (int j = 0; j < ACROSS; j++) y[j] = bs[now][k][across + j / 4 * 64 + j % 4];
            for (int i = 0; i < DOWN; i++)
                for (int j = 0; j < ACROSS; j++) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
        }
        stage(now ^ 1);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < DOWN; i++)
#pragma unroll
        for (int j = 0; j < ACROSS; j++) {
            const I row = first_row + down + i / 4 * 64 + i % 4, to = first_col + across + j / 4 * 64 + j % 4;
            if (row < rows && to < cols) done(row, to, sums[i][j]);
        }
}
