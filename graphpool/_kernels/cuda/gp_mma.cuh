// A tile of a matrix product of bf16 in f32 by tensor cores: 64 x 64 sums by 8 warps of 16 x 32 each, operands staged
// 16 columns at a time, two in a word.

#define GP_TILE 64
#define GP_DEPTH 16
#define GP_TILE_THREADS 256
#define GP_TILE_ROOM __shared__ unsigned as[GP_TILE][GP_DEPTH / 2 + 4], bs[GP_TILE][GP_DEPTH / 2 + 4]

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

// As in gp_tile.cuh; `as` has rows, `bs` columns.
template <class A, class B, class Done>
static __device__ __forceinline__ void gp_multiply_tile(
    unsigned (*as)[GP_DEPTH / 2 + 4], unsigned (*bs)[GP_DEPTH / 2 + 4], long long first_row, long long first_col,
    long long rows, long long cols, long long depth, const A &a, const B &b, const Done &done) {
    const int thread = threadIdx.x, warp = thread / 32, group = thread % 32 / 4, pair = thread % 4;
    const int top = warp % 4 * 16, left = warp / 4 * 32;
    float sums[4][4] = {};
    for (long long begin = 0; begin < depth; begin += GP_DEPTH) {
        for (int e = thread; e < GP_TILE * GP_DEPTH / 2; e += GP_TILE_THREADS) {
            const int at = e % (GP_DEPTH / 2);
            const long long row = first_row + e / (GP_DEPTH / 2), k = begin + 2 * at;
            const float low = row < rows && k < depth ? a(row, k) : 0.0f;
            as[e / (GP_DEPTH / 2)][at] = gp_pack(low, row < rows && k + 1 < depth ? a(row, k + 1) : 0.0f);
        }
        for (int e = thread; e < GP_TILE * GP_DEPTH / 2; e += GP_TILE_THREADS) {
            const long long col = first_col + e % GP_TILE, k = begin + 2 * (e / GP_TILE);
            const float low = col < cols && k < depth ? b(k, col) : 0.0f;
            bs[e % GP_TILE][e / GP_TILE] = gp_pack(low, col < cols && k + 1 < depth ? b(k + 1, col) : 0.0f);
        }
        __syncthreads();
        const unsigned own[4] = {as[top + group][pair], as[top + group + 8][pair], as[top + group][pair + 4],
                                 as[top + group + 8][pair + 4]};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const unsigned *column = bs[left + 8 * n + group], other[2] = {column[pair], column[pair + 4]};
            gp_mma(sums[n], own, other);
        }
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < 4; i++) {
            const long long row = first_row + top + group + 8 * (i / 2);
            const long long col = first_col + left + 8 * n + 2 * pair + i % 2;
            if (row < rows && col < cols) done(row, col, sums[n][i]);
        }
}
