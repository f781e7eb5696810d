// A tile of a matrix product of bf16 in f32 by tensor cores: 16 DOWN x 16 ACROSS sums by 8 warps, operands staged 32
// columns at a time, two in a word.

#define GP_DEPTH 32
#define GP_TILE_THREADS 256
#define GP_TILE_ROOM(down, across) \
    __shared__ unsigned as[2][16 * (down)][GP_DEPTH / 2 + 4], bs[2][16 * (across)][GP_DEPTH / 2 + 4]

#ifdef __CUDA_ARCH__
// Adds the product of 16 x 16 and 16 x 8 to 16 x 8 sums, which lie as PTX says of mma.m16n8k16.
static __device__ __forceinline__ void gp_mma(float *c, const unsigned *a, const unsigned *b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// Of floats that bf16 holds.
static __device__ __forceinline__ unsigned gp_pack(float low, float high) {
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

// of(k), or 0 behind the last one.
template <class I, class Of>
static __device__ __forceinline__ float gp_within(I k, I depth, const Of &of) {
    const float x = of(k < depth ? k : depth - 1);
    return k < depth ? x : 0.0f;
}

// As in gp_tile.cuh; `as` has rows, `bs` columns. A warp has 16 rows and 2 DOWN ACROSS columns.
template <int DOWN, int ACROSS, class I, class Prepare, class A, class B, class Done>
static __device__ __forceinline__ void gp_multiply_tile(
    unsigned (*as)[16 * DOWN][GP_DEPTH / 2 + 4], unsigned (*bs)[16 * ACROSS][GP_DEPTH / 2 + 4], I first_row, I first_col,
    I rows, I cols, I depth, const Prepare &prepare, const A &a, const B &b,
    const Done &done) {
    const int words = GP_DEPTH / 2, tile = 16 * ACROSS, wide = DOWN * ACROSS / 4;
    const int thread = threadIdx.x, warp = thread / 32, group = thread % 32 / 4, pair = thread % 4;
    const int top = warp % DOWN * 16, first = warp / DOWN * 8 * wide;
    const I col = first_col + thread % tile;
    const auto column = b(col < cols ? col : cols - 1);
    float sums[wide][4] = {};
    unsigned left[DOWN], right[ACROSS];
    const auto read = [&](I begin) {
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
            const I row = first_row + thread / words + GP_TILE_THREADS / words * i;
            const I k = begin + 2 * (thread % words);
            const auto own = [&](I at) { return a(row < rows ? row : rows - 1, at); };
            const float low = gp_within(k, depth, own);
            left[i] = gp_pack(low, gp_within(k + 1, depth, own));
        }
#pragma unroll
        for (int i = 0; i < ACROSS; i++) {
            const I other = begin + 2 * (thread / tile + i * (GP_TILE_THREADS / tile));
            const float down = gp_within(other, depth, column);
            right[i] = gp_pack(down, gp_within(other + 1, depth, column));
        }
    };
    const auto stage = [&](int to) {
#pragma unroll
        for (int i = 0; i < DOWN; i++) as[to][thread / words + GP_TILE_THREADS / words * i][thread % words] = left[i];
#pragma unroll
        for (int i = 0; i < ACROSS; i++)
            bs[to][thread % tile][thread / tile + i * (GP_TILE_THREADS / tile)] = right[i];
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
        for (int half = 0; half < words; half += 8) {
            const unsigned *low = as[now][top + group] + half + pair, *high = as[now][top + group + 8] + half + pair;
            const unsigned own[4] = {low[0], high[0], low[4], high[4]};
#pragma unroll
            for (int n = 0; n < wide; n++) {
                const unsigned *from = bs[now][first + 8 * n + group] + half + pair, other[2] = {from[0], from[4]};
                gp_mma(sums[n], own, other);
            }
        }
        stage(now ^ 1);
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < wide; n++)
        for (int i = 0; i < 4; i++) {
            const I row = first_row + top + group + 8 * (i / 2);
            const I to = first_col + first + 8 * n + 2 * pair + i % 2;
            if (row < rows && to < cols) done(row, to, sums[n][i]);
        }
}
