/* Four words of 32 bits, and squares of four times four of them. */
#ifndef GP_QUAD_H
#define GP_QUAD_H

#include "core/gp_kernel.h"

typedef uint32_t gp_quad __attribute__((vector_size(16), aligned(4), may_alias));

#if defined(__clang__)
#define GP_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define GP_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (gp_quad){i, j, k, l})
#endif

/* Four words of each of four columns, to four rows. */
static inline __attribute__((always_inline)) void gp_transpose_quad(const void *c0, const void *c1, const void *c2,
                                                                    const void *c3, void *r0, void *r1, void *r2,
                                                                    void *r3)
{
    const gp_quad a = *(const gp_quad *)c0, b = *(const gp_quad *)c1, c = *(const gp_quad *)c2, d = *(const gp_quad *)c3;
    const gp_quad ab_low = GP_SHUFFLE(a, b, 0, 4, 1, 5), ab_high = GP_SHUFFLE(a, b, 2, 6, 3, 7);
    const gp_quad cd_low = GP_SHUFFLE(c, d, 0, 4, 1, 5), cd_high = GP_SHUFFLE(c, d, 2, 6, 3, 7);
    *(gp_quad *)r0 = GP_SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
    *(gp_quad *)r1 = GP_SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
    *(gp_quad *)r2 = GP_SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
    *(gp_quad *)r3 = GP_SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
}

#endif
