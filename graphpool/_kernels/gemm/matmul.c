/* Batched matrix products, with an elementwise epilogue on every tile.
 *
 * A task is one tile of row_block x col_block results of one matrix of the batch. args: a, b, dst, then what the
 * epilogue reads beyond dst (its own argument 0 is dst). The iteration space of the epilogue is row-major over
 * (batch..., m, n). Scratch: the tile, a packed copy of A's rows, a packed copy of B's columns or the panel of the own
 * loops, sums in f64; each part only where it is needed. */
#include "gemm/gp_gemm.h"
#include "eltwise/gp_tile.h"

#define GP_MAX_BATCH 10

GP_RECORD(gp_matmul, {
    int64_t m, n, k;
    int64_t row_block, col_block;
    int64_t nbatch;
    int64_t batch_shape[GP_MAX_BATCH], a_batch[GP_MAX_BATCH], b_batch[GP_MAX_BATCH], dst_batch[GP_MAX_BATCH];
    int64_t a_row, a_col, b_row, b_col, dst_row;
    int64_t pack_a, pack_b;
    int64_t tile_in_scratch, has_epilogue;
    int64_t pack_a_offset, pack_b_offset; /* bytes into scratch: the tile lies at 0, the panel at pack_b_offset */
    int64_t exact_depth, sums_offset;     /* terms at a time, their sums added in f64; 0: all terms at once */
    uint64_t blas;
});

/* Offsets, in elements, of one matrix of the batch. */
typedef struct {
    int64_t a, b, dst;
} batch_offsets;

static batch_offsets locate_batch(const gp_matmul *p, int64_t batch)
{
    batch_offsets at = {0, 0, 0};
    for (int64_t d = p->nbatch - 1; d >= 0; --d) {
        const int64_t i = batch % p->batch_shape[d];
        batch /= p->batch_shape[d];
        at.a += i * p->a_batch[d];
        at.b += i * p->b_batch[d];
        at.dst += i * p->dst_batch[d];
    }
    return at;
}

static inline __attribute__((always_inline)) void product(const gp_matmul *p, int64_t rows, int64_t cols, int64_t k,
                                                          gp_matrix a, gp_matrix b, void *c, int64_t ldc,
                                                          char *scratch, const int nbytes, const int use_blas)
{
    void *room = scratch + p->pack_b_offset;
    if (!use_blas) {
        if (nbytes == 4)
            GP_KERNEL(f32_gemm)(rows, cols, k, a, b, c, ldc, room);
        else
            GP_KERNEL(f64_gemm)(rows, cols, k, a, b, c, ldc, room);
        return;
    }
    if (p->pack_a)
        a = gp_pack(a, rows, k, scratch + p->pack_a_offset, nbytes);
    if (p->pack_b)
        b = gp_pack(b, k, cols, room, nbytes);
    if (k == 0) /* BLAS may return early and leave the tile as it was */
        for (int64_t i = 0; i < rows; ++i)
            memset((char *)c + i * ldc * nbytes, 0, (size_t)(cols * nbytes));
    else if (nbytes == 4)
        gp_blas_f32(p->blas, rows, cols, k, a, b, c, ldc);
    else
        gp_blas_f64(p->blas, rows, cols, k, a, b, c, ldc);
}

/* The same for f32, a part of the terms after the other. */
static inline __attribute__((always_inline)) void product_of_parts(const gp_matmul *p, int64_t rows, int64_t cols,
                                                                   gp_matrix a, gp_matrix b, float *c, int64_t ldc,
                                                                   char *scratch, const int use_blas)
{
    for (int64_t begin = 0; begin < p->k; begin += p->exact_depth) {
        const int64_t left = p->k - begin, k = left < p->exact_depth ? left : p->exact_depth;
        product(p, rows, cols, k, gp_from_col(a, begin, 4), gp_from_row(b, begin, 4), c, ldc, scratch, 4, use_blas);
        gp_add_part((double *)(scratch + p->sums_offset), c, ldc, rows, cols, begin == 0, k == left);
    }
}

static inline __attribute__((always_inline)) void run(const gp_matmul *p, void *const *args, int64_t begin, int64_t end,
                                                      char *scratch, const int nbytes, const int use_blas)
{
    const int64_t row_blocks = (p->m + p->row_block - 1) / p->row_block;
    const int64_t col_blocks = (p->n + p->col_block - 1) / p->col_block;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t j = task % col_blocks * p->col_block;
        const int64_t i = task / col_blocks % row_blocks * p->row_block;
        const int64_t batch = task / col_blocks / row_blocks;
        const int64_t rows = p->m - i < p->row_block ? p->m - i : p->row_block;
        const int64_t cols = p->n - j < p->col_block ? p->n - j : p->col_block;
        const batch_offsets at = locate_batch(p, batch);
        const gp_matrix a = {(char *)args[0] + (at.a + i * p->a_row) * nbytes, p->a_row, p->a_col};
        const gp_matrix b = {(char *)args[1] + (at.b + j * p->b_col) * nbytes, p->b_row, p->b_col};
        char *dst = (char *)args[2] + (at.dst + i * p->dst_row + j) * nbytes;
        char *tile = p->tile_in_scratch ? scratch : dst;
        const int64_t ldc = p->tile_in_scratch ? cols : p->dst_row;
        if (p->exact_depth)
            product_of_parts(p, rows, cols, a, b, (float *)tile, ldc, scratch, use_blas);
        else
            product(p, rows, cols, p->k, a, b, tile, ldc, scratch, nbytes, use_blas);
        if (p->has_epilogue)
            gp_run_epilogue((const gp_eltwise *)(p + 1), args + 2, (const float *)tile, ldc, rows, cols,
                            (batch * p->m + i) * p->n + j, p->n);
    }
}

GP_DEFINE_KERNEL(f32_matmul_blas) { run(params, args, begin, end, scratch, 4, 1); }
GP_DEFINE_KERNEL(f32_matmul_simd) { run(params, args, begin, end, scratch, 4, 0); }
GP_DEFINE_KERNEL(f64_matmul_blas) { run(params, args, begin, end, scratch, 8, 1); }
GP_DEFINE_KERNEL(f64_matmul_simd) { run(params, args, begin, end, scratch, 8, 0); }

const gp_kernel_entry GP_KERNEL(matmul_table)[] = {
    GP_ENTRY(f32_matmul_blas, gp_matmul),
    GP_ENTRY(f32_matmul_simd, gp_matmul),
    GP_ENTRY(f64_matmul_blas, gp_matmul),
    GP_ENTRY(f64_matmul_simd, gp_matmul),
    GP_TABLE_END,
};
