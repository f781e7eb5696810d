/* Matrix products for kernels: one shape of call for SciPy's BLAS and for our own register-blocked loops.
 *
 * C is row-major; A and B lie by any row and column stride for the own loops. BLAS needs one of both strides to be 1
 * and the other to be no smaller than the extent: gp_pack brings a matrix there, and the builders, which know the
 * strides, ask for it and reserve its room. */
#ifndef GP_GEMM_H
#define GP_GEMM_H

#include <string.h>

#include "core/gp_kernel.h"
#include "core/gp_vec.h"

/* The integer of scipy.linalg.cython_blas: _blas.pyx fails to compile with a SciPy that has another one. */
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
#define gp_f32_gemm GP_OF(gemm_gemm, f32_gemm)
void gp_f32_gemm(int64_t m, int64_t n, int64_t k, gp_matrix a, gp_matrix b, float *c, int64_t ldc, float *panel);
#define gp_f64_gemm GP_OF(gemm_gemm, f64_gemm)
void gp_f64_gemm(int64_t m, int64_t n, int64_t k, gp_matrix a, gp_matrix b, double *c, int64_t ldc,
                         double *panel);

/* Copy rows x cols elements of `nbytes` bytes each; strides in elements. */
GP_INLINE void gp_copy(void *dst, int64_t dst_row, int64_t dst_col, const void *src, int64_t src_row, int64_t src_col,
                       int64_t rows, int64_t cols, int64_t nbytes)
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

/* c = a * b: by the own loops with that panel, or by BLAS if `gemm` says where its address is kept (it is loaded when a
 * program first runs a step that calls it, long after parameter blocks are made). Column-major BLAS computes
 * C^T = B^T A^T; without terms it may return early and leave c as it was. */
#define GP_DEFINE_PRODUCT(name, own, real, gemm_fn)                                                                    \
    static inline void name(uintptr_t gemm, int64_t m, int64_t n, int64_t k, gp_matrix a, gp_matrix b, real *c,        \
                            int64_t ldc, real *panel)                                                                  \
    {                                                                                                                  \
        gp_blas_int bm = (gp_blas_int)m, bn = (gp_blas_int)n, bk = (gp_blas_int)k, lda, ldb, bldc = (gp_blas_int)ldc;  \
        char trans_a = gp_blas_trans(a, m, k, &lda), trans_b = gp_blas_trans(b, k, n, &ldb);                           \
        real one = 1, zero = 0;                                                                                        \
        if (!gemm)                                                                                                     \
            own(m, n, k, a, b, c, ldc, panel);                                                                         \
        else if (k > 0)                                                                                                \
            (*(gemm_fn *)gemm)(&trans_b, &trans_a, &bn, &bm, &bk, &one, (real *)b.data, &ldb, (real *)a.data, &lda,    \
                               &zero, c, &bldc);                                                                       \
        else                                                                                                           \
            for (int64_t i = 0; i < m; ++i)                                                                            \
                memset(c + i * ldc, 0, (size_t)n * sizeof(real));                                                      \
    }

GP_DEFINE_PRODUCT(gp_product_f32, gp_f32_gemm, float, gp_sgemm_fn)
GP_DEFINE_PRODUCT(gp_product_f64, gp_f64_gemm, double, gp_dgemm_fn)

/* The same in f32, `depth` terms at a time, or all where it is 0.
 *
 * Products of integers are exact in f32 as long as a sum stays within 2^24, so parts of so many terms, added in f64,
 * give the s32 accumulation of any number of terms without another product. */
static inline void gp_product_of_parts(int64_t depth, double *sums, uintptr_t gemm, int64_t m, int64_t n, int64_t k,
                                       gp_matrix a, gp_matrix b, float *c, int64_t ldc, float *panel)
{
    if (depth == 0) {
        gp_product_f32(gemm, m, n, k, a, b, c, ldc, panel);
        return;
    }
    for (int64_t first = 0; first < k; first += depth) {
        a.data = (const float *)a.data + (first ? depth * a.col_stride : 0);
        b.data = (const float *)b.data + (first ? depth * b.row_stride : 0);
        gp_product_f32(gemm, m, n, gp_min(k - first, depth), a, b, c, ldc, panel);
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) {
                sums[i * n + j] = (first ? sums[i * n + j] : 0) + (double)c[i * ldc + j];
                if (first + depth >= k)
                    c[i * ldc + j] = (float)sums[i * n + j];
            }
    }
}

#endif
