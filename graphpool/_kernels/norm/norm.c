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

/* y = (deviation * scale + shift) * gamma + beta */
static void normalise_row(gp_normaliser m, const float *x, int64_t n, const float *gamma, const float *beta, float *y)
{
    if (gamma && beta)
        for (int64_t i = 0; i < n; i++)
            y[i] = (GP_DEVIATION(x[i], m.offset) * m.scale + m.shift) * gamma[i] + beta[i];
    else if (gamma)
        for (int64_t i = 0; i < n; i++)
            y[i] = (GP_DEVIATION(x[i], m.offset) * m.scale + m.shift) * gamma[i];
    else
        for (int64_t i = 0; i < n; i++)
            y[i] = GP_DEVIATION(x[i], m.offset) * m.scale + m.shift;
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
