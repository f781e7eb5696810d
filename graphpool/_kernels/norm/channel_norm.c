/* Group normalisation, and the batch statistics of a training batch normalisation.
 *
 * A task covers some channels of one sample (of all samples, for a batch). Its first half finds the moments of every
 * channel, along runs of points where those are contiguous (NCX), or row by row with loops over channels where these
 * are (NXC); groups are merged from channels, so the layout matters nowhere else.
 */
#include "norm/gp_columns.h"
#include "norm/gp_moments.h"

GP_RECORD(channel_params, {
    gp_space outer;                        /* samples: src, dst, mean, variance */
    gp_space points;                       /* what a channel averages over, but for the run: src, dst */
    int64_t npoints;
    int64_t run, run_stride[2];            /* innermost points; 1 where loops run over channels */
    int64_t channels, channel_stride[2];
    int64_t width;                         /* channels of a task */
    int64_t group;                         /* channels of a group */
    int64_t stat_stride[2];                /* from group to group: mean, variance */
    int64_t by_channel;                    /* whether loops run over channels */
    int64_t gamma, beta, mean, variance, dst;  /* their arguments; -1 for none */
    int64_t offset, scale;                     /* those of normalisers, which only batch_moments writes */
    int64_t has_program;
    double epsilon;
});

/* Scratch of a task. */
typedef struct {
    gp_moments *moments;                                 /* one per channel */
    float *offset, *scale, *shift;                       /* of a normaliser, one per channel */
    float *row;
} workspace;

static workspace get_workspace(const channel_params *p, void *scratch)
{
    gp_moments *moments = scratch;
    float *floats = (float *)(moments + p->width);
    return (workspace){moments, floats, floats + p->width, floats + 2 * p->width, floats + 3 * p->width};
}

/* Moments of one channel, run by run. */
static gp_moments get_channel_moments(const channel_params *p, const float *src, float *row)
{
    gp_moments m = {0, 0, 0};
    for (int64_t i = 0; i < p->npoints; i++) {
        int64_t at[GP_SPACE_OPERANDS];
        gp_offsets(&p->points, i, at);
        gp_add_moments(&m, gp_gather(src + at[0], p->run_stride[0], p->run, row), p->run);
    }
    return m;
}

/* Moments of a tile: its channels have the count in common. */
typedef struct {
    double count, mean[GP_COLUMNS], m2[GP_COLUMNS];
} tile_moments;

/* Merge n rows of w channels; the algorithm is that of gp_add_moments. */
static void add_rows(const float *const *rows, int64_t n, int64_t w, tile_moments *t)
{
    float mean[GP_COLUMNS] = {0}, sum[GP_COLUMNS], squares[GP_COLUMNS];
    gp_sum_columns(GP_TERM_VALUE, rows, n, w, NULL, mean);
    for (int64_t j = 0; j < w; j++)
        mean[j] /= (float)n;
    gp_sum_columns(GP_TERM_DEVIATION, rows, n, w, mean, sum);
    gp_sum_columns(GP_TERM_SQUARE, rows, n, w, mean, squares);
    const double total = t->count + (double)n, share = (double)n / total, weight = t->count * share;
    for (int64_t j = 0; j < w; j++) {
        const double lost = sum[j] * (1.0 / (double)n), delta = mean[j] + lost - t->mean[j];
        t->m2[j] += squares[j] - lost * sum[j] + delta * delta * weight;
        t->mean[j] += delta * share;
    }
    t->count = total;
}

/* Moments of one channel of a tile, in f64. */
static gp_moments get_column_moments(const channel_params *p, const float *src)
{
    gp_moments m = {0, 0, 0};
    for (int64_t i = 0; i < p->npoints; i++) {
        int64_t at[GP_SPACE_OPERANDS];
        gp_offsets(&p->points, i, at);
        gp_merge_element(&m, src[at[0]]);
    }
    return m;
}

/* Moments of w <= GP_COLUMNS channels, side by side. */
static void get_tile_moments(const channel_params *p, const float *src, int64_t w, gp_moments *m)
{
    tile_moments t = {0};
    for (int64_t first = 0; first < p->npoints; first += GP_COLUMN_ROWS) {
        const float *rows[GP_COLUMN_ROWS];
        const int64_t n = gp_find_rows(&p->points, p->npoints, first, src, rows);
        add_rows(rows, n, w, &t);
    }
    for (int64_t j = 0; j < w; j++)
        m[j] = gp_are_moments_sound(t.m2[j]) ? (gp_moments){t.count, t.mean[j], t.m2[j]} : get_column_moments(p, src + j);
}

/* Moments of the n channels at src. */
static void get_moments(const channel_params *p, const float *src, int64_t n, const workspace *ws)
{
    if (p->by_channel)
        for (int64_t c = 0; c < n; c += GP_COLUMNS)
            get_tile_moments(p, src + c, gp_min(GP_COLUMNS, n - c), ws->moments + c);
    else
        for (int64_t c = 0; c < n; c++)
            ws->moments[c] = get_channel_moments(p, src + c * p->channel_stride[0], ws->row);
}

/* The normaliser of `n` channels of one group, which begins at channel `first`; writes its statistics. */
static void finish_group(const channel_params *p, void *const *args, const int64_t *at, int64_t first, int64_t c,
                         const workspace *ws)
{
    const float *gamma = gp_optional(args, p->gamma), *beta = gp_optional(args, p->beta);
    gp_moments m = {0, 0, 0};
    for (int64_t k = c; k < c + p->group; k++)
        gp_merge_moments(&m, ws->moments[k].count, ws->moments[k].mean, ws->moments[k].m2);
    const int64_t index = (first + c) / p->group;
    gp_put(args, p->mean, at[2] + index * p->stat_stride[0], m.mean);
    gp_put(args, p->variance, at[3] + index * p->stat_stride[1], gp_variance(&m));
    const gp_normaliser normaliser = gp_make_normaliser(m.mean, gp_variance(&m), p->epsilon);
    for (int64_t k = c; k < c + p->group; k++) {
        const float g = gamma ? gamma[first + k] : 1;
        ws->offset[k] = normaliser.offset;
        ws->scale[k] = normaliser.scale * g;
        ws->shift[k] = normaliser.shift * g + (beta ? beta[first + k] : 0);
    }
}

static void normalise_runs(const channel_params *p, const gp_sink *sink, const float *src, int64_t dst, int64_t n,
                           const workspace *ws)
{
    for (int64_t c = 0; c < n; c++)
        for (int64_t i = 0; i < p->npoints; i++) {
            int64_t at[GP_SPACE_OPERANDS];
            gp_offsets(&p->points, i, at);
            const float *from = src + c * p->channel_stride[0] + at[0];
            const float *x = gp_gather(from, p->run_stride[0], p->run, ws->row);
            const int64_t offset = dst + c * p->channel_stride[1] + at[1];
            float *y = gp_sink_row(sink, offset, p->run_stride[1], ws->row);
            const gp_vf added = gp_splat(ws->offset[c]), scale = gp_splat(ws->scale[c]), shift = gp_splat(ws->shift[c]);
            for (int64_t k = 0; k < p->run; k += GP_VL) {
                const gp_vf v = gp_load_some(x + k, p->run - k);
                gp_store_part(y + k, gp_vfma(v, gp_splat(0.25f), added) * scale + shift, p->run - k);
            }
            gp_emit(sink, y, p->run, offset, p->run_stride[1]);
        }
}

static void normalise_rows(const channel_params *p, const gp_sink *sink, const float *src, int64_t dst, int64_t n,
                           const workspace *ws)
{
    for (int64_t i = 0; i < p->npoints; i++) {
        int64_t at[GP_SPACE_OPERANDS];
        gp_offsets(&p->points, i, at);
        const float *x = src + at[0];
        float *y = gp_sink_row(sink, dst + at[1], p->channel_stride[1], ws->row);
        for (int64_t k = 0; k < n; k++)
            y[k] = GP_DEVIATION(x[k], ws->offset[k]) * ws->scale[k] + ws->shift[k];
        gp_emit(sink, y, n, dst + at[1], p->channel_stride[1]);
    }
}

GP_DEFINE_KERNEL(f32_group_norm)
{
    const channel_params *p = params;
    const gp_sink sink = gp_make_sink(p + 1, p->has_program, args + p->dst);
    const workspace ws = get_workspace(p, scratch);
    const int64_t tiles = (p->channels + p->width - 1) / p->width;
    for (int64_t task = begin; task < end; task++) {
        const int64_t first = task % tiles * p->width, n = gp_min(p->width, p->channels - first);
        int64_t at[GP_SPACE_OPERANDS];
        gp_offsets(&p->outer, task / tiles, at);
        const float *src = (const float *)args[0] + at[0] + first * p->channel_stride[0];
        const int64_t dst = at[1] + first * p->channel_stride[1];
        get_moments(p, src, n, &ws);
        for (int64_t c = 0; c < n; c += p->group)
            finish_group(p, args, at, first, c, &ws);
        (p->by_channel ? normalise_rows : normalise_runs)(p, &sink, src, dst, n, &ws);
    }
}

GP_DEFINE_KERNEL(f32_batch_moments)
{
    const channel_params *p = params;
    const workspace ws = get_workspace(p, scratch);
    for (int64_t task = begin; task < end; task++) {
        const int64_t first = task * p->width, n = gp_min(p->width, p->channels - first);
        get_moments(p, (const float *)args[0] + first * p->channel_stride[0], n, &ws);
        for (int64_t c = 0; c < n; c++) {
            const double mean = ws.moments[c].mean, variance = gp_variance(ws.moments + c);
            const gp_normaliser normaliser = gp_make_normaliser(mean, variance, p->epsilon);
            gp_put(args, p->mean, (first + c) * p->stat_stride[0], mean);
            gp_put(args, p->variance, (first + c) * p->stat_stride[1], variance);
            ((float *)args[p->offset])[first + c] = normaliser.offset;
            ((float *)args[p->scale])[first + c] = normaliser.scale;
        }
    }
}

const gp_kernel_entry GP_KERNEL(channel_norm_table)[] = {
    GP_ENTRY(f32_group_norm, channel_params),
    GP_ENTRY(f32_batch_moments, channel_params),
    GP_INNER(gp_moments),
    GP_NUMBER(GP_COLUMNS),
    GP_NUMBER(GP_MOST_COLUMNS),
    GP_TABLE_END,
};
