/* Bring weights of 8 or 4 bits, with their scales and zero points, into the layout of gp_compressed.h.
 *
 * A task is one panel. args: q, scales, the zero points if there are any, packed. */
#include "gemm/gp_compressed.h"
#include "core/gp_convert.h"

GP_RECORD(gp_compress_params, {
    int64_t k, n;
    int64_t row, col, dtype;          /* of q; strides in elements */
    int64_t ngroups;
    int64_t scale_group, scale_col, scale_dtype;
    int64_t zero_group, zero_col, zero_dtype, has_zeros;
    int64_t scales_offset, zeros_offset; /* bytes */
});

GP_INLINE int bits_of(int64_t dtype)
{
    return dtype == GP_S8 || dtype == GP_U8 ? 8 : 4;
}

/* What makes signed numbers unsigned. */
GP_INLINE int half_of(int64_t dtype)
{
    return dtype == GP_S8 ? 128 : dtype == GP_S4 ? 8 : 0;
}

GP_INLINE void pack_numbers(const int64_t dtype, const gp_compress_params *p, const uint8_t *q, int64_t j, int64_t cols,
                            uint32_t *to, int64_t width)
{
    const int bits = bits_of(dtype), half = half_of(dtype);
    const int64_t depth = gp_word_depth(bits);
    memset(to, 0, (size_t)(gp_word_count(bits, p->k) * width) * sizeof *to);
    for (int64_t i = 0; i < p->k; i++)
        for (int64_t c = 0; c < cols; c++) {
            const int64_t at = i * p->row + (j + c) * p->col;
            const uint32_t u = (bits == 8 ? q[at] : q[at >> 1] >> (at & 1) * 4 & 15) ^ half;
            to[i / depth * width + c] |= u << gp_word_shift(bits, (int)(i % depth));
        }
}

static void pack_panel(const gp_compress_params *p, const uint8_t *q, int64_t j, int64_t cols, uint32_t *to,
                       int64_t width)
{
    if (p->dtype == GP_S8)
        pack_numbers(GP_S8, p, q, j, cols, to, width);
    else if (p->dtype == GP_U8)
        pack_numbers(GP_U8, p, q, j, cols, to, width);
    else if (p->dtype == GP_S4)
        pack_numbers(GP_S4, p, q, j, cols, to, width);
    else
        pack_numbers(GP_U4, p, q, j, cols, to, width);
}

/* The scales of a panel from `to` on, zeros behind the last column. */
static void pack_scales(const gp_compress_params *p, const void *scales, int64_t j, int64_t cols, float *to,
                        int64_t width)
{
    for (int64_t g = 0; g < p->ngroups; g++, to += width) {
        memset(to, 0, (size_t)width * sizeof *to);
        GP_KERNEL(load_row)((int)p->scale_dtype, to, scales, g * p->scale_group + j * p->scale_col, p->scale_col, cols);
    }
}

static void pack_zeros(const gp_compress_params *p, const void *zeros, int64_t j, int64_t cols, int16_t *to,
                       int64_t width)
{
    for (int64_t g = 0; g < p->ngroups; g++, to += width) {
        float row[GP_PANEL] = {0};
        GP_KERNEL(load_row)((int)p->zero_dtype, row, zeros, g * p->zero_group + j * p->zero_col, p->zero_col, cols);
        for (int64_t c = 0; c < width; c++)
            to[c] = (int16_t)((int16_t)row[c] + half_of(p->dtype));
    }
}

GP_DEFINE_KERNEL(f32_matmul_pack_compressed)
{
    const gp_compress_params *p = params;
    char *packed = args[2 + p->has_zeros];
    const int64_t words = gp_word_count(bits_of(p->dtype), p->k);
    for (int64_t j = begin * GP_PANEL; j < gp_min(end * GP_PANEL, p->n); j += GP_PANEL) {
        const int64_t width = gp_panel_width(j, p->n), cols = gp_min(p->n - j, GP_PANEL);
        pack_panel(p, args[0], j, cols, (uint32_t *)packed + j * words, width);
        pack_scales(p, args[1], j, cols, (float *)(packed + p->scales_offset) + j * p->ngroups, width);
        if (p->has_zeros)
            pack_zeros(p, args[2], j, cols, (int16_t *)(packed + p->zeros_offset) + j * p->ngroups, width);
    }
}

const gp_kernel_entry GP_KERNEL(compressed_weights_table)[] = {
    GP_ENTRY(f32_matmul_pack_compressed, gp_compress_params),
    GP_TABLE_END,
};
