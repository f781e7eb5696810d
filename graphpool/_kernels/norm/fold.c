/* A BatchNorm of constants as what stands in front of it wants it: weights times a scale for each channel, and a bias.
 *
 * scale = gamma / sqrt(variance + epsilon), shift = beta - mean * scale, and shift + own * scale where the convolution
 * has a bias of its own, in f64 and rounded once. Weights lie as (before, channels, after) without gaps; without any, the scale itself is
 * written. A task is a block of channels.
 * args: gamma, beta, mean, variance, [weights], [own bias], scale or scaled weights, shift. */
#include <math.h>

#include "core/gp_kernel.h"
#include "core/gp_math.h"

#define GP_FOLD_BLOCK 16

GP_RECORD(gp_fold, {
    int64_t channels, before, after;
    int64_t has_weights, has_bias;
    double epsilon;
});

/* The rows [first, last) of `scaled`, each times its scale. */
static void scale_rows(const gp_fold *p, const float *restrict weights, const float *scale, float *restrict scaled,
                       int64_t first, int64_t last)
{
    for (int64_t b = 0; b < p->before; b++)
        for (int64_t c = first; c < last; c++) {
            const int64_t start = (b * p->channels + c) * p->after;
            for (int64_t a = start; a < start + p->after; a++)
                scaled[a] = weights[a] * scale[c - first];
        }
}

GP_DEFINE_KERNEL(f32_batch_norm_fold)
{
    const gp_fold *p = params;
    const float *gamma = args[0], *beta = args[1], *mean = args[2], *variance = args[3];
    const float *weights = p->has_weights ? args[4] : NULL;
    const float *own = p->has_bias ? args[4 + p->has_weights] : NULL;
    float *const scaled = args[4 + p->has_weights + p->has_bias], *const shift = args[5 + p->has_weights + p->has_bias];
    for (int64_t task = begin; task < end; task++) {
        const int64_t first = task * GP_FOLD_BLOCK, wanted = first + GP_FOLD_BLOCK;
        const int64_t last = wanted < p->channels ? wanted : p->channels;
        float scale[GP_FOLD_BLOCK];
        for (int64_t c = first; c < last; c++) {
            const double factor = gamma[c] / sqrt(variance[c] + p->epsilon);
            const double rest = beta[c] - mean[c] * factor;
            scale[c - first] = (float)factor;
            shift[c] = (float)(own == NULL ? rest : own[c] * factor + rest);
        }
        if (weights != NULL)
            scale_rows(p, weights, scale, scaled, first, last);
        else
            for (int64_t c = first; c < last; c++)
                scaled[c] = scale[c - first];
    }
}

const gp_kernel_entry GP_KERNEL(fold_table)[] = {
    GP_ENTRY(f32_batch_norm_fold, gp_fold),
    GP_NUMBER(GP_FOLD_BLOCK),
    GP_TABLE_END,
};
