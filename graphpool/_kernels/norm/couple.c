/* Probabilities of classes from those of their pairs. A task is a block of rows. */
#include <math.h>

#include "core/gp_kernel.h"
#include "core/gp_vec.h"

GP_RECORD(couple_params, {
    int64_t nrows, nclasses, block;
});

/* The symmetric matrix whose quadratic form the probabilities make small. */
static void set_form(int64_t n, const float *pairs, double *form)
{
    for (int64_t i = 0; i < n; i++)
        form[i * n + i] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++) {
            const double wins = *pairs++, loses = 1 - wins;
            form[i * n + i] += loses * loses;
            form[j * n + j] += wins * wins;
            form[i * n + j] = form[j * n + i] = -wins * loses;
        }
}

/* The form times p, and by p from both sides; returns how far slopes lie from that at most, NaN if one is. */
static double set_slopes(int64_t n, const double *form, const double *p, double *slopes, double *value)
{
    double total = 0, farthest = 0;
    for (int64_t i = 0; i < n; i++) {
        slopes[i] = 0;
        for (int64_t j = 0; j < n; j++)
            slopes[i] += form[i * n + j] * p[j];
        total += p[i] * slopes[i];
    }
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs(slopes[i] - total);
        farthest = error <= farthest ? farthest : error;
    }
    *value = total;
    return farthest;
}

/* One class after another takes the share that makes the form least. */
static void step(int64_t n, const double *form, double *p, double *slopes, double value)
{
    for (int64_t i = 0; i < n; i++) {
        const double own = form[i * n + i], more = (value - slopes[i]) / own, scale = 1 / (1 + more);
        p[i] += more;
        value = (value + more * (more * own + 2 * slopes[i])) * scale * scale;
        for (int64_t j = 0; j < n; j++) {
            slopes[j] = (slopes[j] + more * form[i * n + j]) * scale;
            p[j] *= scale;
        }
    }
}

/* args: src (rows, pairs), dst (rows, classes), both dense. */
GP_DEFINE_KERNEL(f32_couple)
{
    const couple_params *sizes = params;
    const int64_t n = sizes->nclasses, npairs = n * (n - 1) / 2, most = n > 100 ? n : 100;
    double *form = scratch, *p = form + n * n, *slopes = p + n;
    for (int64_t row = begin * sizes->block; row < gp_min(end * sizes->block, sizes->nrows); row++) {
        float *dst = (float *)args[1] + row * n;
        double value;
        set_form(n, (const float *)args[0] + row * npairs, form);
        for (int64_t i = 0; i < n; i++)
            p[i] = 1.0 / (double)n;
        for (int64_t k = 0; k < most && !(set_slopes(n, form, p, slopes, &value) < 0.005 / (double)n); k++)
            step(n, form, p, slopes, value);
        for (int64_t i = 0; i < n; i++)
            dst[i] = (float)p[i];
    }
}

const gp_kernel_entry GP_KERNEL(couple_table)[] = {
    GP_ENTRY(f32_couple, couple_params),
    GP_TABLE_END,
};
