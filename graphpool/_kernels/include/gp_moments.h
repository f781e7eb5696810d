/* Moments of rows and the normal form that follows from them.
 *
 * Moments are found block by block: the mean of a block, then the squared deviations from it while the block is in
 * cache, then the merge with what came before (Chan, Golub and LeVeque, "Algorithms for computing the sample
 * variance", 1983). That is one pass over memory, and no cancellation whatever the mean.
 */
#ifndef GP_MOMENTS_H
#define GP_MOMENTS_H

#include "gp_vec.h"

#define GP_MOMENT_BLOCK 2048 /* elements: 8 KiB, well inside L1 */

typedef struct {
    double count, mean, m2;  /* m2: sum of squared deviations from the mean */
} gp_moments;

GP_INLINE void gp_merge_moments(gp_moments *a, double count, double mean, double m2)
{
    const double total = a->count + count, delta = mean - a->mean;
    if (count == 0)
        return;
    a->m2 += m2 + delta * delta * (a->count * count / total);
    a->mean += delta * (count / total);
    a->count = total;
}

static inline __attribute__((unused)) void gp_add_moments(gp_moments *sum, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += GP_MOMENT_BLOCK) {
        const int64_t size = gp_min(n - i, GP_MOMENT_BLOCK);
        const double mean = gp_row_sum(GP_TERM_VALUE, x + i, size, 0) / (double)size;
        const float shift = (float)mean;
        const double lost = mean - shift;  /* deviations from `shift` exceed those from the mean by this much */
        const double squares = gp_row_sum(GP_TERM_SQUARE, x + i, size, shift);
        gp_merge_moments(sum, (double)size, mean, squares - (double)size * lost * lost);
    }
}

GP_INLINE double gp_variance(const gp_moments *m)
{
    return m->m2 < 0 ? 0 : m->m2 / m->count;  /* rounding may leave it just below 0 */
}

/* What turns x into its normal form: (x - mean) * scale + shift, where shift makes good the rounding of the mean. */
typedef struct {
    float mean, scale, shift;
} gp_normaliser;

GP_INLINE gp_normaliser gp_make_normaliser(double mean, double variance, double epsilon)
{
    const double scale = 1 / sqrt(variance + epsilon);
    const float rounded = (float)mean;
    return (gp_normaliser){rounded, (float)scale, (float)((rounded - mean) * scale)};
}

/* The f32 argument `index`; NULL for -1. */
GP_INLINE const float *gp_optional(void *const *args, int64_t index)
{
    return index < 0 ? NULL : args[index];
}

/* Write an optional output. */
GP_INLINE void gp_put(void *const *args, int64_t index, int64_t offset, double value)
{
    if (index >= 0)
        ((float *)args[index])[offset] = (float)value;
}

#endif
