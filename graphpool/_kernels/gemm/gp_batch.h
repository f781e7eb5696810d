/* Batches of matrix products. */
#ifndef GP_BATCH_H
#define GP_BATCH_H

#include "core/gp_vec.h"

#define GP_MAX_BATCH 10

/* The sides of a product, in the order of its strides. */
enum { GP_A, GP_B, GP_DST, GP_RESIDUAL };

/* How far matrix `number` of a batch lies from the first one, on each side. */
GP_INLINE void gp_locate_batch(int64_t ndim, const int64_t *shape, const int64_t (*strides)[GP_MAX_BATCH],
                               const int sides, int64_t number, int64_t *at)
{
    memset(at, 0, (size_t)sides * sizeof *at);
    for (int64_t d = ndim - 1; d >= 0; number /= shape[d--])
        for (int side = 0; side < sides; side++)
            at[side] += number % shape[d] * strides[side][d];
}

#endif
