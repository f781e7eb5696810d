/* Rows of bytes that are copied: a call of memcpy for each would take longer than most rows that are short. */
#ifndef GP_ROWS_H
#define GP_ROWS_H

#include "core/gp_kernel.h"
#include "core/gp_vec.h"

/* Bytes of a row up to which parts of 64 take less than a call of memcpy. */
#define GP_SHORT_COPY 512

/* Rows of n bytes: two moves of `part` bytes each, which meet or overlap. */
GP_INLINE void gp_copy_twice(char *dst, int64_t dst_pitch, const char *src, int64_t src_pitch, int64_t n, int64_t nrows,
                             const int64_t part)
{
    for (int64_t i = 0; i < nrows; i++, dst += dst_pitch, src += src_pitch) {
        char first[32], second[32];
        memcpy(first, src, part);
        memcpy(second, src + n - part, part);
        memcpy(dst, first, part);
        memcpy(dst + n - part, second, part);
    }
}

/* 64 bytes. */
GP_INLINE void gp_copy_part(char *dst, const char *src)
{
    gp_vf part[64 / sizeof(gp_vf)];
    GP_EACH(i, 64 / (int)sizeof(gp_vf))
        memcpy(&part[i], src + i * sizeof(gp_vf), sizeof(gp_vf));
    GP_EACH(i, 64 / (int)sizeof(gp_vf))
        memcpy(dst + i * sizeof(gp_vf), &part[i], sizeof(gp_vf));
}

/* A row of n bytes by parts, the last one of which may overlap the one before. */
GP_INLINE void gp_copy_parts(char *dst, const char *src, int64_t n)
{
    for (int64_t at = 0; at < n - 64; at += 64)
        gp_copy_part(dst + at, src + at);
    gp_copy_part(dst + n - 64, src + n - 64);
}

/* Rows of n bytes. */
static __attribute__((unused)) void gp_copy_rows(char *dst, int64_t dst_pitch, const char *src, int64_t src_pitch,
                                                 int64_t n, int64_t nrows)
{
    if (n == 0)
        return;
    if (n == 4)
        for (int64_t i = 0; i < nrows; i++)
            memcpy(dst + i * dst_pitch, src + i * src_pitch, 4);
    else if (n == 8)
        for (int64_t i = 0; i < nrows; i++)
            memcpy(dst + i * dst_pitch, src + i * src_pitch, 8);
    else if (n == 1)
        for (int64_t i = 0; i < nrows; i++)
            dst[i * dst_pitch] = src[i * src_pitch];
    else if (n < 4)
        gp_copy_twice(dst, dst_pitch, src, src_pitch, n, nrows, 2);
    else if (n < 8)
        gp_copy_twice(dst, dst_pitch, src, src_pitch, n, nrows, 4);
    else if (n <= 16)
        gp_copy_twice(dst, dst_pitch, src, src_pitch, n, nrows, 8);
    else if (n <= 32)
        gp_copy_twice(dst, dst_pitch, src, src_pitch, n, nrows, 16);
    else if (n <= 64)
        gp_copy_twice(dst, dst_pitch, src, src_pitch, n, nrows, 32);
    else if (n <= GP_SHORT_COPY)
        for (int64_t i = 0; i < nrows; i++)
            gp_copy_parts(dst + i * dst_pitch, src + i * src_pitch, n);
    else
        for (int64_t i = 0; i < nrows; i++)
            memcpy(dst + i * dst_pitch, src + i * src_pitch, n);
}

#endif
