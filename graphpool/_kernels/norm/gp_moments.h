/* Moments of rows and the normaliser that follows from them.
 *
 * Moments are found block by block: the mean of a block, then the squared deviations from it while the block is in
 * cache, then the merge with what came before (Chan, Golub and LeVeque, "Algorithms for computing the sample
 * variance", 1983). That is one pass over memory, and no cancellation whatever the mean.
 */
#ifndef GP_MOMENTS_H
#define GP_MOMENTS_H

#include "core/gp_kernel.h"
#include "core/gp_math.h"
#include "core/gp_vec.h"

#define GP_MOMENT_BLOCK 2048 /* elements: 8 KiB, well inside L1 */

GP_RECORD(gp_moments, {
    double count, mean, m2;  /* m2: sum of squared deviations from the mean */
});

GP_INLINE void gp_merge_moments(gp_moments *a, double count, double mean, double m2)
{
    const double total = a->count + count, delta = mean - a->mean;
    if (count == 0)
        return;
    if (a->count == 0) { /* saves two divisions, which short rows would wait for */
        *a = (gp_moments){count, mean, m2};
        return;
    }
    a->m2 += m2 + delta * delta * (a->count * count / total);
    a->mean += fabs(delta) < INFINITY ? delta * (count / total) : mean; /* an infinite mean stays, or becomes NaN */
    a->count = total;
}

/* Whether f32 held what moments are made of; not where it overflows, nor where there is an infinity or a NaN. */
GP_INLINE int gp_are_moments_sound(double m2)
{
    return fabs(m2) < INFINITY;
}

/* Merge a single element in f64: nothing overflows, and m2 becomes NaN where the mean is not finite. */
GP_INLINE void gp_merge_element(gp_moments *a, double x)
{
    gp_merge_moments(a, 1, x, x - x);
}

/* Sums of (x - shift) and of its squares over at most GP_SUM_BLOCK elements. */
GP_INLINE void gp_block_deviations(const float *x, int64_t n, float shift, double *sum, double *squares)
{
    const gp_vf s = gp_splat(shift);
    gp_vf d1[2] = {{0}, {0}}, d2[2] = {{0}, {0}};
    for (int64_t i = 0; i < n; i += 2 * GP_VL)
#pragma GCC unroll 2
        for (int64_t v = 0; v < 2; v++) {
            const int64_t at = i + v * GP_VL;
            const gp_vf d = (at + GP_VL <= n ? gp_load(x + at) : at < n ? gp_load_part(x + at, n - at, shift) : s) - s;
            d1[v] += d;
            d2[v] = gp_vfma(d, d, d2[v]);
        }
    const double part = gp_lane_sum(d2[0] + d2[1]);
    *sum += gp_lane_sum(d1[0] + d1[1]);
    *squares += gp_is_sum_sound(GP_TERM_SQUARE, part) ? part : gp_block_sum_f64(GP_TERM_SQUARE, x, n, shift);
}

/* The sum of deviations from a mean in f32 is what rounding took from the mean (corrected two-pass algorithm). */
static inline __attribute__((unused)) void gp_add_moments(gp_moments *total, const float *x, int64_t n)
{
    for (int64_t first = 0; first < n; first += GP_MOMENT_BLOCK) {
        const int64_t size = gp_min(n - first, GP_MOMENT_BLOCK);
        const double inverse = 1 / (double)size; /* before the sums are there, which would wait for divisions */
        const float shift = (float)(gp_row_sum(GP_TERM_VALUE, x + first, size, 0) * inverse);
        double sum = 0, squares = 0;
        for (int64_t i = first; i < first + size; i += GP_SUM_BLOCK)
            gp_block_deviations(x + i, gp_min(first + size - i, GP_SUM_BLOCK), shift, &sum, &squares);
        const double lost = sum * inverse;
        const double m2 = squares - lost * sum;
        if (gp_are_moments_sound(m2))
            gp_merge_moments(total, (double)size, shift + lost, m2);
        else
            for (int64_t i = first; i < first + size; i++)
                gp_merge_element(total, x[i]);
    }
}

GP_INLINE double gp_variance(const gp_moments *m)
{
    return m->m2 < 0 ? 0 : m->m2 * (1 / m->count);  /* rounding may leave it just below 0 */
}

/* What normalises x: (x / 4 + offset) * scale + shift, where shift makes good the rounding of the mean.
 * The quarter keeps differences from the mean within the range of f32, and costs nothing where there is FMA. */
typedef struct {
    float offset, scale, shift;
} gp_normaliser;

#define GP_DEVIATION(x, offset) GP_FMA(x, 0.25f, offset)

GP_INLINE gp_normaliser gp_make_normaliser(double mean, double variance, double epsilon)
{
    const double scale = 1 / sqrt(variance + epsilon);
    const float rounded = (float)mean;
    return (gp_normaliser){-0.25f * rounded, (float)(4 * scale), (float)((rounded - mean) * scale)};
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
