/* What 8-bit products do to their sums while they are in registers: roundings to 8 bits and what lies between them.
 *
 *   x = sum * scale + bias             what the product is
 *   x = clamp(x)                       with a first rounding: through it and back; else only where f32 is stored
 *   x += late bias, x += residual      the residual is f32, or 8 bits with a scale and a zero point
 *   dst = x                            f32, or the second rounding
 *
 * Numbers are rounded by adding 1.5 * 2^23, behind which f32 has no room for fractions: to nearest even, after a clamp to
 * the range of the type, so that the low byte of the sum is the integer. A zero point that belongs to the rounded number
 * is part of what is added; one that is added to the integer follows. */
#ifndef GP_REQUANT_H
#define GP_REQUANT_H

#include "gp_packed.h"

/* To 8 bits: integer = round(clamp(x * inverse) + zero point), and back: (integer - zero point) * scale. */
typedef struct {
    float inverse, lo, hi;
    float shift;    /* 1.5 * 2^23, plus the zero point where it is rounded with the number */
    float scale;
    int32_t after;  /* what is added to the integer */
} gp_rounding;

typedef struct {
    gp_rounding inner, outer;
    int64_t has_inner, dst_dtype, residual_dtype;
    int64_t late_bias_arg, residual_arg; /* 0: there is none */
    float residual_scale;
    int32_t residual_zero;
    float lo, hi; /* of f32 results */
} gp_requant;

/* The same at the place of a tile: base pointers, and strides in elements. */
typedef struct gp_requant_sink {
    const gp_requant *p;
    const float *late_bias;
    const char *residual;
    char *dst;
    int64_t residual_row, dst_row;
} gp_requant_sink;

typedef int8_t gp_vb __attribute__((vector_size(GP_VL)));
typedef uint8_t gp_vub __attribute__((vector_size(GP_VL)));

GP_INLINE int64_t gp_element_nbytes(int64_t dtype)
{
    return dtype == GP_F32 ? 4 : 1;
}

/* The bytes of a vector, widened; `left` of them exist. */
GP_INLINE gp_vi gp_load_bytes(int64_t dtype, const char *from, int64_t left)
{
    gp_vb bytes = {0};
    if (left >= GP_VL)
        memcpy(&bytes, from, sizeof bytes);
    else
        memcpy(&bytes, from, (size_t)left);
    if (dtype == GP_U8)
        return __builtin_convertvector((gp_vub)bytes, gp_vi);
    return __builtin_convertvector(bytes, gp_vi);
}

GP_INLINE void gp_store_bytes(char *to, gp_vi v, int64_t left)
{
    const gp_vb bytes = __builtin_convertvector(v, gp_vb);
    if (left >= GP_VL)
        memcpy(to, &bytes, sizeof bytes);
    else
        memcpy(to, &bytes, (size_t)left);
}

/* x * inverse within the limits, rounded: shift is still in it. */
GP_INLINE gp_vf gp_round_shifted(const gp_rounding *r, gp_vf x)
{
    return gp_vclamp(x * r->inverse, gp_splat(r->lo), gp_splat(r->hi)) + r->shift;
}

GP_INLINE gp_vf gp_there_and_back(const gp_rounding *r, gp_vf x)
{
    return (gp_round_shifted(r, x) - r->shift) * r->scale;
}

/* The elements of a residual, as f32. */
GP_INLINE gp_vf gp_load_residual(const gp_requant *p, const char *from, int64_t left)
{
    if (p->residual_dtype == GP_F32)
        return left >= GP_VL ? gp_load((const float *)from) : gp_load_part((const float *)from, left, 0);
    return __builtin_convertvector(gp_load_bytes(p->residual_dtype, from, left) - p->residual_zero, gp_vf);
}

/* From sums times scale plus bias to where they are stored. */
GP_INLINE void gp_requantize(const int rows, const int nv, const int is_whole,
                             gp_vf (*acc)[GP_TILE_PANELS * GP_PANEL_VECTORS], const gp_packed_sink *sink)
{
    const gp_requant_sink s = *sink->requant;
    const gp_requant p = *s.p; /* copies that the stores cannot change */
    const int64_t nbytes = gp_element_nbytes(p.dst_dtype), from_nbytes = gp_element_nbytes(p.residual_dtype);
    char *dst = s.dst + (sink->row * s.dst_row + sink->col) * nbytes;
    if (p.has_inner)
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < nv; j++)
                acc[i][j] = gp_there_and_back(&p.inner, acc[i][j]);
    if (s.late_bias)
#pragma GCC unroll 8
        for (int j = 0; j < nv; j++) {
            const int64_t left = is_whole ? GP_VL : sink->cols - j * GP_VL;
            const gp_vf bias = gp_load_some(s.late_bias + sink->col + j * GP_VL, left);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++)
                acc[i][j] += bias;
        }
    if (s.residual) {
        const char *from = s.residual + (sink->row * s.residual_row + sink->col) * from_nbytes;
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < nv; j++) {
                const int64_t left = is_whole ? GP_VL : sink->cols - j * GP_VL;
                const char *at = from + (i * s.residual_row + j * GP_VL) * from_nbytes;
                acc[i][j] += gp_load_residual(&p, at, left > 0 ? left : 0) * p.residual_scale;
            }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < nv; j++) {
            const int64_t left = is_whole ? GP_VL : sink->cols - j * GP_VL;
            char *to = dst + (i * s.dst_row + j * GP_VL) * nbytes;
            if (nbytes == 4)
                gp_store_part((float *)to, gp_vclamp(acc[i][j], gp_splat(p.lo), gp_splat(p.hi)), left > 0 ? left : 0);
            else
                gp_store_bytes(to, (gp_vi)gp_round_shifted(&p.outer, acc[i][j]) + p.outer.after, left > 0 ? left : 0);
        }
}

#endif
