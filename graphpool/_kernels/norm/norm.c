/* Layer and RMS normalisation: a task is a row. */
#include "norm/gp_moments.h"
#include "eltwise/gp_sink.h"

GP_RECORD(layer_norm_params, {
    gp_space outer;           /* src, dst, mean, variance */
    int64_t size, stride[2];  /* the row in src, dst */
    int64_t gamma, beta, mean, variance, dst;  /* their arguments; -1 for none */
    int64_t is_rms, has_program;
    double epsilon;
});

/* y = (deviation * scale + shift) * gamma + beta, of n elements, or a vector of them. */
GP_INLINE void normalise_vector(const gp_normaliser *m, const float *x, int64_t n, const float *gamma, const float *beta,
                                float *y)
{
    gp_vf v = gp_vfma(gp_load_some(x, n), gp_splat(0.25f), gp_splat(m->offset)) * m->scale + m->shift;
    if (gamma)
        v *= gp_load_some(gamma, n);
    if (gamma && beta)
        v += gp_load_some(beta, n);
    gp_store_part(y, v, n);
}

static void normalise_row(gp_normaliser m, const float *x, int64_t n, const float *gamma, const float *beta, float *y)
{
    int64_t i = 0;
    if (gamma && beta)
        for (; i + GP_VL <= n; i += GP_VL)
            normalise_vector(&m, x + i, GP_VL, gamma + i, beta + i, y + i);
    for (; i < n; i += GP_VL)
        normalise_vector(&m, x + i, n - i, gamma ? gamma + i : NULL, beta ? beta + i : NULL, y + i);
}

GP_DEFINE_KERNEL(f32_layer_norm)
{
    const layer_norm_params *p = params;
    const gp_sink sink = gp_make_sink(p + 1, p->has_program, args + p->dst);
    for (int64_t task = begin; task < end; task++) {
        int64_t at[GP_SPACE_OPERANDS];
        gp_offsets(&p->outer, task, at);
        const float *x = gp_gather((const float *)args[0] + at[0], p->stride[0], p->size, scratch);
        float *y = gp_sink_row(&sink, at[1], p->stride[1], scratch);
        gp_moments m = {0, 0, 0};
        if (p->is_rms)
            m = (gp_moments){(double)p->size, 0, gp_row_sum(GP_TERM_SQUARE, x, p->size, 0)};
        else
            gp_add_moments(&m, x, p->size);
        const double variance = gp_variance(&m);
        gp_put(args, p->mean, at[2], m.mean);
        gp_put(args, p->variance, at[3], variance);
        normalise_row(gp_make_normaliser(m.mean, variance, p->epsilon), x, p->size, gp_optional(args, p->gamma),
                      gp_optional(args, p->beta), y);
        gp_emit(&sink, y, p->size, at[1], p->stride[1]);
    }
}

const gp_kernel_entry GP_KERNEL(norm_table)[] = {
    GP_ENTRY(f32_layer_norm, layer_norm_params),
    GP_TABLE_END,
};
