/* Softmax and log-softmax over one axis.
 *
 * Where the axis is contiguous a task is one row: its maximum, then exponentials and their sum, then the scale; short rows
 * are taken several at once, so that each step of their maxima and sums serves all of them. Where another axis is contiguous a task is a tile of that axis, up to 64 columns wide, and every loop runs over columns.
 */
#include "core/gp_vmath.h"
#include "norm/gp_columns.h"
#include "norm/gp_lanes.h"

GP_RECORD(softmax_params, {
    gp_space outer;  /* src, dst, stats */
    int64_t axis, axis_stride[2];    /* src, dst */
    int64_t inner, inner_stride[3];  /* src, dst, stats; inner is 1 where rows are walked one by one */
    int64_t is_log, inf_as_zero, has_stats, has_program;
});

/* Arguments: src, [stats], dst, then those of the program. */
typedef struct {
    const float *src;
    float *stats;  /* NULL without */
    gp_sink sink;
} operands;

static operands get_operands(const softmax_params *p, void *const *args)
{
    return (operands){args[0], p->has_stats ? args[1] : NULL,
                      gp_make_sink(p + 1, p->has_program, args + 1 + p->has_stats)};
}

/* What is subtracted: the maximum; but 0 for a row of -inf that is to become zeros. */
static float get_shift(const softmax_params *p, float maximum)
{
    return p->inf_as_zero && maximum == -INFINITY ? 0 : maximum;
}

/* The reciprocal of the sum; 0 for a row of -inf that is to become zeros. */
static float get_scale(const softmax_params *p, double sum)
{
    return p->inf_as_zero && sum == 0 ? 0 : (float)(1 / sum);
}

static void softmax_row(const softmax_params *p, const operands *o, const int64_t *at, float *row)
{
    const int64_t n = p->axis;
    const float *x = gp_gather(o->src + at[0], p->axis_stride[0], n, row);
    float *y = gp_sink_row(&o->sink, at[1], p->axis_stride[1], row);
    const float shift = get_shift(p, gp_row_max(x, n));
    const double sum = gp_exp_row(x, n, shift, p->is_log ? NULL : y);
    if (p->is_log) {
        const float log_sum = (float)log(sum);
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - shift) - log_sum;
    } else {
        const float scale = get_scale(p, sum);
        for (int64_t i = 0; i < n; i++)
            y[i] *= scale;
    }
    gp_emit(&o->sink, y, n, at[1], p->axis_stride[1]);
    if (o->stats)
        o->stats[at[2]] = (float)(shift + log(sum));
}

/* Vectors of a row that is short: as many as keep GP_VL rows in registers, or near them. */
#define SHORT_VECTORS 2

/* Reciprocals of sums, as of `get_scale`. */
GP_INLINE gp_vf get_scales(const softmax_params *p, gp_vf sums)
{
    const gp_vf zeros = {0};
    return p->inf_as_zero ? gp_vselect(gp_vequal(sums, zeros), zeros, 1.0f / sums) : 1.0f / sums;
}

/* `count` rows from `first` on, GP_VL at most, of nv vectors, of which the last has n elements. What lies behind the end is
 * -inf, whose exponential is 0. */
GP_INLINE void softmax_short(const softmax_params *p, const operands *o, int64_t first, int64_t count, const int nv,
                             int64_t n)
{
    int64_t at[GP_VL][GP_SPACE_OPERANDS];
    float shift[GP_VL], scale[GP_VL], sum[GP_VL];
    gp_vf x[GP_VL][SHORT_VECTORS], part[GP_VL];
#pragma GCC unroll 16
    for (int j = 0; j < GP_VL; j++) {
        gp_offsets(&p->outer, first + (j < count ? j : 0), at[j]); /* the first row again instead of those there are not */
        const float *from = o->src + at[j][0];
#pragma GCC unroll 2
        for (int k = 0; k < nv; k++, from += GP_VL)
            x[j][k] = k + 1 < nv || n == GP_VL ? gp_load(from) : gp_load_part(from, n, -INFINITY);
        part[j] = gp_vmax(x[j][0], gp_splat(-INFINITY));
        if (nv > 1)
            part[j] = gp_vmax(x[j][1], part[j]);
    }
    const gp_vf most = gp_across_lanes(1, part), least = gp_splat(-INFINITY);
    gp_store(shift, p->inf_as_zero ? gp_vselect(gp_vequal(most, least), (gp_vf){0}, most) : most);
#pragma GCC unroll 16
    for (int j = 0; j < GP_VL; j++) {
        const gp_vf s = gp_splat(shift[j]);
        gp_vf total = {0}, term[2];
        GP_EACH(k, nv)
            term[k] = x[j][k] -= s;
        gp_exp_below(term, nv);
        GP_EACH(k, nv) {
            x[j][k] = p->is_log ? x[j][k] : term[k];
            total += term[k];
        }
        part[j] = total;
    }
    const gp_vf sums = gp_across_lanes(0, part);
    gp_store(sum, sums);
    gp_store(scale, p->is_log ? gp_log(sums) : get_scales(p, sums));
    for (int j = 0; j < count; j++) {
        float row[SHORT_VECTORS * GP_VL], *y = gp_sink_row(&o->sink, at[j][1], p->axis_stride[1], row);
        const gp_vf s = gp_splat(scale[j]);
#pragma GCC unroll 2
        for (int k = 0; k < nv; k++)
            gp_store_part(y + k * GP_VL, p->is_log ? x[j][k] - s : x[j][k] * s, k + 1 < nv ? GP_VL : n);
        gp_emit(&o->sink, y, p->axis, at[j][1], p->axis_stride[1]);
        if (o->stats)
            o->stats[at[j][2]] = (float)(shift[j] + log(sum[j]));
    }
}

static void softmax_short_rows(const softmax_params *p, const operands *o, int64_t begin, int64_t end)
{
    for (; begin < end; begin += GP_VL) {
        const int64_t count = gp_min(end - begin, GP_VL);
        if (p->axis <= GP_VL)
            softmax_short(p, o, begin, count, 1, p->axis);
        else
            softmax_short(p, o, begin, count, 2, p->axis - GP_VL);
    }
}

/* The maximum of each of w columns, NaNs passed over. */
static void tile_max(const float *x, int64_t n, int64_t stride, int64_t w, float *max)
{
    for (int64_t j = 0; j < w; j += GP_VL) {
        gp_vf most = gp_splat(-INFINITY);
        for (int64_t i = 0; i < n; i++)
            most = gp_vmax(gp_load_some(x + i * stride + j, w - j), most);
        gp_store(max + j, most);
    }
}

/* y[i][j] = exp(x[i][j] - shift[j]) in rows of w; sum[j] over i. */
static void tile_exp(const float *x, int64_t n, int64_t stride, int64_t w, const float *shift, float *y, double *sum)
{
    for (int64_t j = 0; j < w; j++)
        sum[j] = 0;
    for (int64_t first = 0; first < n; first += GP_COLUMN_ROWS)
        for (int64_t j = 0; j < w; j += GP_VL) {
            const gp_vf s = gp_load(shift + j);
            gp_vf part = {0};
            for (int64_t i = first; i < gp_min(n, first + GP_COLUMN_ROWS); i++) {
                gp_vf term = gp_load_some(x + i * stride + j, w - j) - s;
                gp_exp_below(&term, 1);
                gp_store_part(y + i * w + j, term, w - j);
                part += term;
            }
            for (int64_t k = 0; k < gp_min(GP_VL, w - j); k++)
                sum[j + k] += part[k];
        }
}

static void softmax_tile(const softmax_params *p, const operands *o, const int64_t *at, int64_t w, float *exps)
{
    const float *x = o->src + at[0];
    float shift[GP_COLUMNS], scale[GP_COLUMNS], row[GP_COLUMNS];
    double sum[GP_COLUMNS];
    tile_max(x, p->axis, p->axis_stride[0], w, shift);
    for (int64_t j = 0; j < w; j++)
        shift[j] = get_shift(p, shift[j]);
    tile_exp(x, p->axis, p->axis_stride[0], w, shift, exps, sum);
    for (int64_t j = 0; j < w; j++)
        scale[j] = p->is_log ? (float)log(sum[j]) : get_scale(p, sum[j]);
    for (int64_t i = 0; i < p->axis; i++) {
        const int64_t offset = at[1] + i * p->axis_stride[1];
        float *y = gp_sink_row(&o->sink, offset, p->inner_stride[1], row);
        if (p->is_log)
            for (int64_t j = 0; j < w; j++)
                y[j] = (x[i * p->axis_stride[0] + j] - shift[j]) - scale[j];
        else
            for (int64_t j = 0; j < w; j++)
                y[j] = exps[i * w + j] * scale[j];
        gp_emit(&o->sink, y, w, offset, p->inner_stride[1]);
    }
    for (int64_t j = 0; o->stats && j < w; j++)
        o->stats[at[2] + j * p->inner_stride[2]] = (float)(shift[j] + log(sum[j]));
}

GP_DEFINE_KERNEL(f32_softmax)
{
    const softmax_params *p = params;
    const operands o = get_operands(p, args);
    int64_t at[GP_SPACE_OPERANDS];
    if (p->inner == 1 && p->axis_stride[0] == 1 && p->axis <= SHORT_VECTORS * GP_VL) {
        softmax_short_rows(p, &o, begin, end);
        return;
    }
    if (p->inner == 1) {
        for (int64_t row = begin; row < end; row++) {
            gp_offsets(&p->outer, row, at);
            softmax_row(p, &o, at, scratch);
        }
        return;
    }
    const int64_t tiles = (p->inner + GP_COLUMNS - 1) / GP_COLUMNS;
    for (int64_t task = begin; task < end; task++) {
        const int64_t first = task % tiles * GP_COLUMNS;
        gp_offsets(&p->outer, task / tiles, at);
        for (int k = 0; k < 3; k++)
            at[k] += first * p->inner_stride[k];
        softmax_tile(p, &o, at, gp_min(GP_COLUMNS, p->inner - first), scratch);
    }
}

const gp_kernel_entry GP_KERNEL(softmax_table)[] = {
    GP_ENTRY(f32_softmax, softmax_params),
    GP_TABLE_END,
};
