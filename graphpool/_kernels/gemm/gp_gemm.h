/* Matrix products for kernels: one shape of call for SciPy's BLAS and for our own register-blocked loops.
 *
 * C is row-major; A and B lie by any row and column stride for the own loops. BLAS needs one of both strides to be 1
 * and the other to be no smaller than the extent: gp_pack brings a matrix there, and the builders, which know the
 * strides, ask for it and reserve its room.
 */
#ifndef GP_GEMM_H
#define GP_GEMM_H

#include <string.h>

#include "core/gp_kernel.h"

/* The integer of scipy.linalg.cython_blas. _blas.pyx passes pointers to it, so a SciPy with another width fails to
 * compile instead of going wrong. */
typedef int gp_blas_int;

typedef void (*gp_sgemm_fn)(char *, char *, gp_blas_int *, gp_blas_int *, gp_blas_int *, float *, float *,
                            gp_blas_int *, float *, gp_blas_int *, float *, float *, gp_blas_int *);
typedef void (*gp_dgemm_fn)(char *, char *, gp_blas_int *, gp_blas_int *, gp_blas_int *, double *, double *,
                            gp_blas_int *, double *, gp_blas_int *, double *, double *, gp_blas_int *);

/* Columns of the widest panel of the own loops: k * GP_PANEL_NBYTES bytes hold one panel of B. */
#define GP_PANEL_NBYTES 512

/* A matrix inside something larger; strides in elements. */
typedef struct {
    const void *data;
    int64_t row_stride, col_stride;
} gp_matrix;

/* c = a * b by the own loops; `panel` has room for k * GP_PANEL_NBYTES bytes. */
void GP_KERNEL(f32_gemm)(int64_t m, int64_t n, int64_t k, gp_matrix a, gp_matrix b, float *c, int64_t ldc, float *panel);
void GP_KERNEL(f64_gemm)(int64_t m, int64_t n, int64_t k, gp_matrix a, gp_matrix b, double *c, int64_t ldc,
                         double *panel);

/* Copy rows x cols elements of `nbytes` bytes each; strides in elements. */
static inline __attribute__((always_inline)) void gp_copy(void *dst, int64_t dst_row, int64_t dst_col, const void *src,
                                                          int64_t src_row, int64_t src_col, int64_t rows, int64_t cols,
                                                          int64_t nbytes)
{
    for (int64_t i = 0; i < rows; ++i) {
        char *to = (char *)dst + i * dst_row * nbytes;
        const char *from = (const char *)src + i * src_row * nbytes;
        if (dst_col == 1 && src_col == 1)
            memcpy(to, from, (size_t)(cols * nbytes));
        else
            for (int64_t j = 0; j < cols; ++j)
                memcpy(to + j * dst_col * nbytes, from + j * src_col * nbytes, (size_t)nbytes);
    }
}

/* Add a tile of partial sums to dense rows of doubles; behind the last part the tile holds their rounded totals.
 *
 * Products of integers are exact in f32 as long as a sum stays within 2^24, so parts of so many terms, added in f64,
 * give the s32 accumulation of any number of terms without another product. */
static inline void gp_add_part(double *sums, float *tile, int64_t ld, int64_t rows, int64_t cols, int is_first,
                               int is_last)
{
    for (int64_t i = 0; i < rows; ++i, sums += cols, tile += ld)
        for (int64_t j = 0; j < cols; ++j) {
            const double total = (is_first ? 0 : sums[j]) + (double)tile[j];
            sums[j] = total;
            if (is_last)
                tile[j] = (float)total;
        }
}

/* The matrix from column `begin` on. */
static inline gp_matrix gp_from_col(gp_matrix a, int64_t begin, int64_t nbytes)
{
    return (gp_matrix){(const char *)a.data + begin * a.col_stride * nbytes, a.row_stride, a.col_stride};
}

/* The matrix from row `begin` on. */
static inline gp_matrix gp_from_row(gp_matrix a, int64_t begin, int64_t nbytes)
{
    return (gp_matrix){(const char *)a.data + begin * a.row_stride * nbytes, a.row_stride, a.col_stride};
}

/* The matrix, copied to `room` as dense rows. */
static inline gp_matrix gp_pack(gp_matrix a, int64_t rows, int64_t cols, void *room, int64_t nbytes)
{
    if (nbytes == 4)
        gp_copy(room, cols, 1, a.data, a.row_stride, a.col_stride, rows, cols, 4);
    else
        gp_copy(room, cols, 1, a.data, a.row_stride, a.col_stride, rows, cols, 8);
    return (gp_matrix){room, cols, 1};
}

/* BLAS sees a row-major matrix as its transpose: 'N' where rows are contiguous, 'T' where columns are. */
static inline char gp_blas_trans(gp_matrix a, int64_t rows, int64_t cols, gp_blas_int *ld)
{
    int by_rows = (a.col_stride == 1 || cols == 1) && (a.row_stride >= cols || rows == 1);
    int64_t stride = by_rows ? (rows == 1 ? cols : a.row_stride) : (cols == 1 ? rows : a.col_stride);
    *ld = (gp_blas_int)(stride > 1 ? stride : 1);
    return by_rows ? 'N' : 'T';
}

/* c = a * b by BLAS, in row-major terms: column-major BLAS computes C^T = B^T A^T. `gemm` says where its address is
 * kept: BLAS is loaded when a program first runs a step that calls it, long after parameter blocks are made. */
#define GP_DEFINE_BLAS(name, real, gemm_fn)                                                                            \
    static inline void name(uintptr_t gemm, int64_t m, int64_t n, int64_t k, gp_matrix a, gp_matrix b, real *c,        \
                            int64_t ldc)                                                                               \
    {                                                                                                                  \
        gp_blas_int bm = (gp_blas_int)m, bn = (gp_blas_int)n, bk = (gp_blas_int)k, lda, ldb, bldc = (gp_blas_int)ldc;  \
        char trans_a = gp_blas_trans(a, m, k, &lda), trans_b = gp_blas_trans(b, k, n, &ldb);                           \
        real one = 1, zero = 0;                                                                                        \
        (*(gemm_fn *)gemm)(&trans_b, &trans_a, &bn, &bm, &bk, &one, (real *)b.data, &ldb, (real *)a.data, &lda, &zero, \
                           c, &bldc);                                                                                  \
    }

GP_DEFINE_BLAS(gp_blas_f32, float, gp_sgemm_fn)
GP_DEFINE_BLAS(gp_blas_f64, double, gp_dgemm_fn)

#endif
