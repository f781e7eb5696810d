/* Batched matrix products, with an elementwise epilogue on every tile.
 *
 * A task is one tile of row_block x col_block results of one matrix of the batch. args: a, b, then those of the
 * post-ops. */
#include "gemm/gp_gemm.h"
#include "gemm/gp_batch.h"
#include "eltwise/gp_tile.h"

GP_RECORD(gp_matmul, {
    int64_t m, n, k;
    int64_t row_block, col_block;
    int64_t nbatch;
    int64_t batch_shape[GP_MAX_BATCH], batch_strides[3][GP_MAX_BATCH];
    int64_t a_row, a_col, b_row, b_col, dst_row;
    int64_t pack_a, pack_b;
    int64_t tile_in_scratch, has_epilogue;
    int64_t pack_a_offset, pack_b_offset; /* bytes into scratch: the tile lies at 0, the panel at pack_b_offset */
    int64_t exact_depth, sums_offset;     /* terms at a time, their sums added in f64; 0: all terms at once */
    uint64_t blas; /* where its address is kept; 0: own loops */
});

GP_INLINE void run(const gp_matmul *p, void *const *args, int64_t begin, int64_t end, char *scratch, const int nbytes)
{
    const int64_t row_blocks = (p->m + p->row_block - 1) / p->row_block;
    const int64_t col_blocks = (p->n + p->col_block - 1) / p->col_block;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t j = task % col_blocks * p->col_block, i = task / col_blocks % row_blocks * p->row_block;
        const int64_t rows = gp_min(p->m - i, p->row_block), cols = gp_min(p->n - j, p->col_block);
        const int64_t batch = task / col_blocks / row_blocks;
        int64_t at[3];
        gp_locate_batch(p->nbatch, p->batch_shape, p->batch_strides, 3, batch, at);
        gp_matrix a = {(char *)args[0] + (at[GP_A] + i * p->a_row) * nbytes, p->a_row, p->a_col};
        gp_matrix b = {(char *)args[1] + (at[GP_B] + j * p->b_col) * nbytes, p->b_row, p->b_col};
        void *dst = (char *)args[2] + (at[GP_DST] + i * p->dst_row + j) * nbytes, *room = scratch + p->pack_b_offset;
        void *tile = p->tile_in_scratch ? scratch : dst;
        const int64_t ldc = p->tile_in_scratch ? cols : p->dst_row;
        if (p->pack_a)
            a = gp_pack(a, rows, p->k, scratch + p->pack_a_offset, nbytes);
        if (p->pack_b)
            b = gp_pack(b, p->k, cols, room, nbytes);
        if (nbytes == 4)
            gp_product_of_parts(p->exact_depth, (double *)(scratch + p->sums_offset), p->blas, rows, cols, p->k, a, b, tile,
                                ldc, room);
        else
            gp_product_f64(p->blas, rows, cols, p->k, a, b, tile, ldc, room);
        if (p->has_epilogue)
            gp_run_epilogue((const gp_eltwise *)(p + 1), args + 2, tile, ldc, rows, cols, (batch * p->m + i) * p->n + j,
                            p->n);
    }
}

GP_DEFINE_KERNEL(f32_matmul) { run(params, args, begin, end, scratch, 4); }
GP_DEFINE_KERNEL(f64_matmul) { run(params, args, begin, end, scratch, 8); }

const gp_kernel_entry GP_KERNEL(matmul_table)[] = {
    {"f32_matmul_blas", GP_KERNEL(f32_matmul), &gp_matmul_record},
    {"f32_matmul_simd", GP_KERNEL(f32_matmul), &gp_matmul_record},
    {"f64_matmul_blas", GP_KERNEL(f64_matmul), &gp_matmul_record},
    {"f64_matmul_simd", GP_KERNEL(f64_matmul), &gp_matmul_record},
    GP_TABLE_END,
};
