/* Softmax and log-softmax over one axis.
 *
 * Where the axis is contiguous a task is one row: its maximum, then exponentials and their sum, then the scale; short rows
 * are taken several at once, so that each step of their maxima and sums serves all of them. Where another axis is contiguous a task is a tile of that axis, up to 64 columns wide, and every loop runs over columns.
 */
#include "core/gp_vmath.h"
#include "norm/gp_columns.h"
#include "core/gp_lanes.h"

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

/* Fetches what a later step reads, and what it writes, of n elements each. */
GP_INLINE void fetch_ahead(const float *read, const float *written, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        __builtin_prefetch(read + i, 0);
        __builtin_prefetch(written + i, 1);
    }
}

/* Elements between whose exponentials as many of the next row, and of results, are fetched. */
#define AHEAD 128

/* Sum of e^(x[i] - shift) of n elements; the terms go to y. */
static double add_row(const float *x, int64_t n, float shift, float *y, const float *next, const float *target,
                      const int has_room)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += AHEAD) {
        const int64_t count = gp_min(n - i, AHEAD);
        fetch_ahead(next + i, target + i, count);
        sum += gp_exp_block(x + i, count, shift, y + i, has_room);
    }
    return sum;
}

static void softmax_row(const softmax_params *p, const operands *o, const int64_t *at, float *row)
{
    const int64_t n = p->axis;
    const float *x = gp_gather(o->src + at[0], p->axis_stride[0], n, row);
    float *y = gp_sink_row(&o->sink, at[1], p->axis_stride[1], row);
    const float shift = get_shift(p, gp_row_max(x, n));
    float exps[GP_SUM_BLOCK]; /* of a row that fits: read in vectors as they were written, whatever is left over */
    const int fits = n <= GP_SUM_BLOCK && !p->is_log;
    const double sum = fits ? add_row(x, n, shift, exps, x + n, y, 1) : gp_exp_row(x, n, shift, p->is_log ? NULL : y);
    if (p->is_log) {
        const gp_vf s = gp_splat(shift), log_sum = gp_splat((float)log(sum));
        for (int64_t i = 0; i < n; i += GP_VL)
            gp_store_part(y + i, (gp_load_some(x + i, n - i) - s) - log_sum, n - i);
    } else {
        const gp_vf scale = gp_splat(get_scale(p, sum));
        int64_t i = 0;
        for (; fits && i + 4 * GP_VL <= n; i += 4 * GP_VL)
            GP_EACH(k, 4)
                gp_store(y + i + k * GP_VL, gp_load(exps + i + k * GP_VL) * scale);
        for (; i < n; i += GP_VL)
            gp_store_part(y + i, (fits ? gp_load(exps + i) : gp_load_some(y + i, n - i)) * scale, n - i);
    }
    gp_emit(&o->sink, y, n, at[1], p->axis_stride[1]);
    if (o->stats)
        o->stats[at[2]] = (float)(shift + log(sum));
}

/* Elements of rows of which GP_VL, and their terms, lie in L1. */
#define SHORT_ROW 256

/* Reciprocals of sums, as of `get_scale`. */
GP_INLINE gp_vf get_scales(const softmax_params *p, gp_vf sums)
{
    const gp_vf zeros = {0};
    return p->inf_as_zero ? gp_vselect(gp_vequal(sums, zeros), zeros, 1.0f / sums) : 1.0f / sums;
}

/* A vector of the n elements that are left, -inf behind them. */
GP_INLINE gp_vf load_or_least(const float *x, int64_t n)
{
    return n < GP_VL ? gp_load_part(x, n, -INFINITY) : gp_load(x);
}

/* Lane by lane the largest elements of a row of n; NaNs are passed over. */
GP_INLINE gp_vf find_most(const float *x, int64_t n)
{
    gp_vf most = gp_splat(-INFINITY);
    for (; n > 0; n -= GP_VL, x += GP_VL)
        most = gp_vmax(load_or_least(x, n), most);
    return most;
}

/* Lane by lane the sum of e^(x[i] - shift) over the nv vectors of a row of n. The terms go to y in whole vectors, or x[i] - shift;
 * what lies behind the end is -inf, whose exponential is 0. */
GP_INLINE gp_vf add_exps(const float *x, int64_t n, float shift, const int is_log, float *y, const int nv)
{
    const gp_vf s = gp_splat(shift);
    gp_vf term[4], total = {0};
    GP_EACH(k, nv) {
        const int64_t left = n - k * GP_VL;
        term[k] = load_or_least(x + k * GP_VL, left) - s;
        if (is_log)
            gp_store(y + k * GP_VL, term[k]);
    }
    gp_exp_below(term, nv);
    GP_EACH(k, nv) {
        if (!is_log)
            gp_store(y + k * GP_VL, term[k]);
        total += term[k];
    }
    return total;
}

/* `count` rows from `first` on, GP_VL at most: each step of their maxima and sums serves all of them. is_vector: they are a
 * vector or less. */
GP_INLINE void softmax_short(const softmax_params *p, const operands *o, int64_t first, int64_t count, const int is_log,
                             const int is_vector)
{
    const int64_t n = is_vector ? gp_min(p->axis, GP_VL) : p->axis, pitch = is_vector ? GP_VL : (n + GP_VL - 1) & -GP_VL;
    int64_t at[GP_VL][GP_SPACE_OPERANDS];
    float shift[GP_VL], scale[GP_VL], sum[GP_VL], terms[GP_VL * SHORT_ROW];
    gp_vf part[GP_VL] = {{0}};
    for (int64_t j = 0; j < count; j++) {
        gp_offsets(&p->outer, first + j, at[j]);
        part[j] = find_most(o->src + at[j][0], n);
    }
    const gp_vf most = gp_across_lanes(1, part), least = gp_splat(-INFINITY);
    gp_store(shift, p->inf_as_zero ? gp_vselect(gp_vequal(most, least), (gp_vf){0}, most) : most);
    for (int64_t j = 0; j < count; j++) {
        const float *x = o->src + at[j][0];
        float *y = terms + j * pitch;
        gp_vf total = {0};
        fetch_ahead(x + GP_VL * n, o->sink.dst ? o->sink.dst + at[j][1] : x, n);
        int64_t left = n;
        for (; !is_vector && left >= 4 * GP_VL; left -= 4 * GP_VL, x += 4 * GP_VL, y += 4 * GP_VL)
            total += add_exps(x, left, shift[j], is_log, y, 4);
        for (; is_vector ? y == terms + j * pitch : left > 0; left -= GP_VL, x += GP_VL, y += GP_VL)
            total += add_exps(x, left, shift[j], is_log, y, 1);
        part[j] = total;
    }
    const gp_vf sums = gp_across_lanes(0, part);
    gp_store(sum, sums);
    gp_store(scale, is_log ? gp_log(sums) : get_scales(p, sums));
    for (int64_t j = 0; j < count; j++) {
        float row[SHORT_ROW], *y = gp_sink_row(&o->sink, at[j][1], p->axis_stride[1], row);
        const gp_vf s = gp_splat(scale[j]);
        for (int64_t i = 0; i < pitch; i += GP_VL) {
            const gp_vf term = gp_load(terms + j * pitch + i);
            gp_store_part(y + i, is_log ? term - s : term * s, n - i);
        }
        gp_emit(&o->sink, y, n, at[j][1], p->axis_stride[1]);
        if (o->stats)
            o->stats[at[j][2]] = (float)(shift[j] + log(sum[j]));
    }
}

static void softmax_short_rows(const softmax_params *p, const operands *o, int64_t begin, int64_t end)
{
    for (; begin < end; begin += GP_VL)
        if (p->is_log)
            softmax_short(p, o, begin, gp_min(end - begin, GP_VL), 1, 0);
        else if (p->axis <= GP_VL)
            softmax_short(p, o, begin, gp_min(end - begin, GP_VL), 0, 1);
        else
            softmax_short(p, o, begin, gp_min(end - begin, GP_VL), 0, 0);
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

/* Where rows of w columns, less than a vector, lie one behind the other, GP_VL of them are w whole vectors: these are the
 * values of the columns in vector number v of all. */
GP_INLINE gp_vf repeat_columns(const float *columns, int64_t w, int64_t v)
{
    float values[GP_VL];
    for (int64_t k = 0; k < GP_VL; k++)
        values[k] = columns[(v * GP_VL + k) % w];
    return gp_load(values);
}

/* tile_max of n such rows. */
static void dense_max(const float *x, int64_t n, int64_t w, float *max)
{
    for (int64_t j = 0; j < w; j++)
        max[j] = -INFINITY;
    for (int64_t v = 0; v < w; v++) {
        gp_vf most = gp_splat(-INFINITY);
        for (int64_t i = v * GP_VL; i < n * w; i += w * GP_VL)
            most = gp_vmax(load_or_least(x + i, n * w - i), most);
        for (int64_t k = 0; k < GP_VL; k++) {
            float *column = max + (v * GP_VL + k) % w;
            *column = most[k] > *column ? most[k] : *column;
        }
    }
}

/* tile_exp of n such rows. */
static void dense_exp(const float *x, int64_t n, int64_t w, const float *shift, float *y, double *sum)
{
    for (int64_t j = 0; j < w; j++)
        sum[j] = 0;
    for (int64_t v = 0; v < w; v++) {
        const gp_vf s = repeat_columns(shift, w, v);
        for (int64_t i = v * GP_VL; i < n * w;) {
            const int64_t end = gp_min(n * w, i + GP_COLUMN_ROWS * w * GP_VL);
            gp_vf part = {0};
            for (; i < end; i += w * GP_VL) {
                gp_vf term = load_or_least(x + i, n * w - i) - s;
                gp_exp_below(&term, 1);
                gp_store_part(y + i, term, n * w - i);
                part += term;
            }
            for (int64_t k = 0; k < GP_VL; k++)
                sum[(v * GP_VL + k) % w] += part[k];
        }
    }
}

/* y = x of n such rows, each column times its scale. */
static void dense_scale(const float *x, int64_t n, int64_t w, const float *scale, float *y)
{
    for (int64_t v = 0; v < w; v++) {
        const gp_vf s = repeat_columns(scale, w, v);
        for (int64_t i = v * GP_VL; i < n * w; i += w * GP_VL)
            gp_store_part(y + i, gp_load_some(x + i, n * w - i) * s, n * w - i);
    }
}

/* A vector of results from exponentials, or from elements of src where logarithms are asked for. */
GP_INLINE gp_vf finish_columns(const int is_log, gp_vf term, const float *shift, const float *scale)
{
    return is_log ? (term - gp_load(shift)) - gp_load(scale) : term * gp_load(scale);
}

static void softmax_tile(const softmax_params *p, const operands *o, const int64_t *at, int64_t w, float *exps)
{
    const float *x = o->src + at[0];
    float shift[GP_COLUMNS], scale[GP_COLUMNS], row[GP_COLUMNS];
    double sum[GP_COLUMNS];
    const int is_dense = w < GP_VL && p->axis_stride[0] == w;
    const int is_stored = is_dense && p->axis_stride[1] == w && p->inner_stride[1] == 1 && o->sink.dst && !p->is_log;
    is_dense ? dense_max(x, p->axis, w, shift) : tile_max(x, p->axis, p->axis_stride[0], w, shift);
    for (int64_t j = 0; j < w; j++)
        shift[j] = get_shift(p, shift[j]);
    if (is_dense)
        dense_exp(x, p->axis, w, shift, exps, sum);
    else
        tile_exp(x, p->axis, p->axis_stride[0], w, shift, exps, sum);
    for (int64_t j = 0; j < w; j++)
        scale[j] = p->is_log ? (float)log(sum[j]) : get_scale(p, sum[j]);
    if (is_stored)
        dense_scale(exps, p->axis, w, scale, o->sink.dst + at[1]);
    for (int64_t i = 0; i < p->axis && !is_stored; i++) {
        const int64_t offset = at[1] + i * p->axis_stride[1];
        float *y = gp_sink_row(&o->sink, offset, p->inner_stride[1], row);
        const float *from = p->is_log ? x + i * p->axis_stride[0] : exps + i * w;
        int64_t j = 0;
        for (; j + GP_VL <= w; j += GP_VL)
            gp_store(y + j, finish_columns(p->is_log, gp_load(from + j), shift + j, scale + j));
        if (j < w)
            gp_store_part(y + j, finish_columns(p->is_log, gp_load_part(from + j, w - j, 0), shift + j, scale + j), w - j);
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
    if (p->inner == 1 && p->axis_stride[0] == 1 && p->axis <= SHORT_ROW) {
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
