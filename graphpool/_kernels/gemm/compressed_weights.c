/* Bring weights of 8 or 4 bits, their scales and their zero points into the layout of gp_compressed.h, and back.
 *
 * A task is one panel; unpacking numbers is one task, since columns of two panels share a byte. args: from, to. */
#include "gemm/gp_compressed.h"
#include "core/gp_convert.h"

GP_RECORD(gp_compress_params, {
    int64_t k, n;
    int64_t row, col, dtype; /* of q; strides in elements */
});

/* Of scales or zero points; half: what makes those of signed numbers unsigned. */
GP_RECORD(gp_scales_params, {
    int64_t n, ngroups;
    int64_t group, col, dtype; /* strides in elements */
    int64_t half;
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
                            uint32_t *to)
{
    const int bits = bits_of(dtype), half = half_of(dtype);
    const int64_t depth = gp_word_depth(bits);
    memset(to, 0, (size_t)(gp_word_count(bits, p->k) * cols) * sizeof *to);
    for (int64_t i = 0; i < p->k; i++)
        for (int64_t c = 0; c < cols; c++) {
            const int64_t at = i * p->row + (j + c) * p->col;
            const uint32_t u = (bits == 8 ? q[at] : q[at >> 1] >> (at & 1) * 4 & 15) ^ half;
            to[i / depth * cols + c] |= u << gp_word_shift(bits, (int)(i % depth));
        }
}

static void pack_panel(const gp_compress_params *p, const uint8_t *q, int64_t j, int64_t cols, uint32_t *to)
{
    if (p->dtype == GP_S8)
        pack_numbers(GP_S8, p, q, j, cols, to);
    else if (p->dtype == GP_U8)
        pack_numbers(GP_U8, p, q, j, cols, to);
    else if (p->dtype == GP_S4)
        pack_numbers(GP_S4, p, q, j, cols, to);
    else
        pack_numbers(GP_U4, p, q, j, cols, to);
}

static void unpack_panel(const gp_compress_params *p, const uint32_t *from, int64_t j, int64_t cols, uint8_t *q)
{
    const int bits = bits_of(p->dtype), half = half_of(p->dtype), depth = (int)gp_word_depth(bits);
    for (int64_t i = 0; i < p->k; i++)
        for (int64_t c = 0; c < cols; c++) {
            const int64_t at = i * p->row + (j + c) * p->col;
            const uint32_t word = from[i / depth * cols + c] >> gp_word_shift(bits, (int)(i % depth));
            const int shift = (int)(at & 1) * 4;
            if (bits == 8)
                q[at] = (uint8_t)(word ^ half);
            else
                q[at >> 1] = (uint8_t)((q[at >> 1] & ~(15 << shift)) | ((word & 15) ^ half) << shift);
        }
}

GP_DEFINE_KERNEL(any_matmul_pack_numbers)
{
    const gp_compress_params *p = params;
    const int64_t words = gp_word_count(bits_of(p->dtype), p->k);
    for (int64_t j = begin * GP_PANEL; j < gp_min(end * GP_PANEL, p->n); j += GP_PANEL)
        pack_panel(p, args[0], j, gp_panel_width(j, p->n), (uint32_t *)args[1] + j * words);
}

GP_DEFINE_KERNEL(any_matmul_unpack_numbers)
{
    const gp_compress_params *p = params;
    const int64_t words = gp_word_count(bits_of(p->dtype), p->k);
    for (int64_t j = 0; begin < end && j < p->n; j += GP_PANEL)
        unpack_panel(p, (const uint32_t *)args[0] + j * words, j, gp_panel_width(j, p->n), args[1]);
}

GP_DEFINE_KERNEL(f32_matmul_pack_scales)
{
    const gp_scales_params *p = params;
    for (int64_t j = begin * GP_PANEL; j < gp_min(end * GP_PANEL, p->n); j += GP_PANEL) {
        const int64_t cols = gp_panel_width(j, p->n);
        float *to = (float *)args[1] + j * p->ngroups;
        for (int64_t g = 0; g < p->ngroups; g++, to += cols)
            gp_load_row((int)p->dtype, to, args[0], g * p->group + j * p->col, p->col, cols);
        if (j + cols == p->n) /* what is read behind the last panel might be subnormal, which multiplies slowly */
            memset(to, 0, (size_t)(-p->n & (GP_VL - 1)) * sizeof *to);
    }
}

GP_DEFINE_KERNEL(f32_matmul_unpack_scales)
{
    const gp_scales_params *p = params;
    for (int64_t j = begin * GP_PANEL; j < gp_min(end * GP_PANEL, p->n); j += GP_PANEL) {
        const int64_t cols = gp_panel_width(j, p->n);
        const float *from = (const float *)args[0] + j * p->ngroups;
        for (int64_t g = 0; g < p->ngroups; g++, from += cols)
            for (int64_t c = 0; c < cols; c++)
                ((float *)args[1])[g * p->group + (j + c) * p->col] = from[c];
    }
}

GP_DEFINE_KERNEL(any_matmul_pack_zeros)
{
    const gp_scales_params *p = params;
    for (int64_t j = begin * GP_PANEL; j < gp_min(end * GP_PANEL, p->n); j += GP_PANEL) {
        const int64_t cols = gp_panel_width(j, p->n);
        int16_t *to = (int16_t *)args[1] + j * p->ngroups;
        for (int64_t g = 0; g < p->ngroups; g++, to += cols) {
            float row[GP_PANEL];
            gp_load_row((int)p->dtype, row, args[0], g * p->group + j * p->col, p->col, cols);
            for (int64_t c = 0; c < cols; c++)
                to[c] = (int16_t)((int16_t)row[c] + p->half);
        }
    }
}

GP_DEFINE_KERNEL(any_matmul_unpack_zeros)
{
    const gp_scales_params *p = params;
    for (int64_t j = begin * GP_PANEL; j < gp_min(end * GP_PANEL, p->n); j += GP_PANEL) {
        const int64_t cols = gp_panel_width(j, p->n);
        const int16_t *from = (const int16_t *)args[0] + j * p->ngroups;
        for (int64_t g = 0; g < p->ngroups; g++, from += cols)
            for (int64_t c = 0; c < cols; c++)
                ((float *)args[1])[g * p->group + (j + c) * p->col] = (float)(from[c] - p->half);
    }
}

const gp_kernel_entry GP_KERNEL(compressed_weights_table)[] = {
    GP_ENTRY(any_matmul_pack_numbers, gp_compress_params),
    GP_ENTRY(any_matmul_unpack_numbers, gp_compress_params),
    GP_ENTRY(f32_matmul_pack_scales, gp_scales_params),
    GP_ENTRY(f32_matmul_unpack_scales, gp_scales_params),
    GP_ENTRY(any_matmul_pack_zeros, gp_scales_params),
    GP_ENTRY(any_matmul_unpack_zeros, gp_scales_params),
    GP_TABLE_END,
};
