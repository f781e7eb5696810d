/* Maximum and average pooling: a task is one row of results of a block of channels.
 *
 * Where channels lie side by side on both sides, vectors run along them: pixel by pixel, all taps in registers. Else
 * channels are taken one by one: the source rows of a window are combined into one line, with padding at its ends, and
 * then the taps along the line, so that a result costs as many loads as the kernel has rows and columns together. Images
 * of bytes, whose channels lie side by side, are pooled as the numbers less their zero point.
 *
 * args: src, dst, then what the epilogue reads beyond dst. */
#include <math.h>

#include "gp_requant.h"
#include "gp_window.h"

typedef struct {
    gp_row_plan rows;
    int64_t counted[3]; /* average: coordinates below this count in the divisor */
    int64_t exclude_pad;
    int64_t src_dtype, zero; /* of bytes; zero: of unsigned ones, 128 more for signed ones */
} gp_pool;

/* How many taps count along an axis for result `o`. */
static int64_t count_taps(const gp_pool *p, int axis, int64_t o)
{
    const gp_window *w = &p->rows.window;
    int64_t count = 0;
    for (int64_t k = 0; k < w->kernel[axis]; ++k) {
        const int64_t i = o * w->stride[axis] - w->pad[axis] + k * w->dilation[axis];
        count += i < p->counted[axis] && (i >= 0 || !p->exclude_pad);
    }
    return count;
}

/* Turn the sums of a row into means. A window without any counted cell gives 0. */
static void divide(const gp_pool *p, const gp_row *row, float *divisors)
{
    const gp_window *w = &p->rows.window;
    const int64_t above = count_taps(p, 0, row->od) * count_taps(p, 1, row->oh);
    for (int64_t o = 0; o < w->out[2]; ++o)
        divisors[o] = (float)gp_max(above * count_taps(p, 2, o), 1);
    for (int64_t i = 0; i < row->rows; ++i) {
        float *tile = row->tile + i * row->ld;
        if (w->channels_last)
            for (int64_t j = 0; j < row->cols; ++j)
                tile[j] /= divisors[i];
        else
            for (int64_t j = 0; j < row->cols; ++j)
                tile[j] /= divisors[j];
    }
}

/* Vectors of channels that a pixel keeps in registers. */
#define GP_POOL_VECTORS 4

/* Taps of the kernel along an axis that result `o` finds inside the source: the first, and how many. */
typedef struct {
    int64_t first, count;
} tap_range;

static tap_range find_range(const gp_window *w, int axis, int64_t o)
{
    const int64_t begin = o * w->stride[axis] - w->pad[axis], step = w->dilation[axis];
    const int64_t first = begin < 0 ? (step - 1 - begin) / step : 0;
    const int64_t last = gp_min(gp_floor_div(w->in[axis] - 1 - begin, step), w->kernel[axis] - 1);
    return (tap_range){first, gp_max(last - first + 1, 0)};
}

/* The sum, or the larger one, lane by lane; a NaN enters and stays. */
GP_INLINE gp_vf combine(gp_vf acc, gp_vf x, const int is_max)
{
    return is_max ? gp_vselect(gp_vequal(acc, acc), gp_vmax(acc, x), acc) : acc + x;
}

/* What `combine` begins with. */
GP_INLINE gp_vf start(const int is_max)
{
    return gp_splat(is_max ? -INFINITY : 0);
}

/* A vector of channels; `left` of them exist. */
GP_INLINE gp_vf load_channels(const gp_pool *p, const int nbytes, const char *x, int64_t left)
{
    if (nbytes == 4)
        return left >= GP_VL ? gp_load((const float *)x) : gp_load_part((const float *)x, left, 0);
    const gp_vi numbers = gp_load_bytes(p->src_dtype == GP_S8 ? 0x80 : 0, x, left);
    return __builtin_convertvector(numbers - (int32_t)p->zero, gp_vf);
}

/* `nv` vectors of channels of one pixel over the taps of three axes; src is at the first tap, `left` channels count. */
GP_INLINE void pool_vectors(const gp_pool *p, const int nbytes, const int nv, const int is_max, const char *src,
                            const tap_range *taps, int64_t left, float *to)
{
    const gp_window *w = &p->rows.window;
    gp_vf acc[GP_POOL_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++)
        acc[v] = start(is_max);
    for (int64_t d = 0; d < taps[0].count; d++)
        for (int64_t h = 0; h < taps[1].count; h++) {
            const char *x = src + (d * w->dilation[0] * w->src[0] + h * w->dilation[1] * w->src[1]) * nbytes;
            for (int64_t i = 0; i < taps[2].count; i++, x += w->dilation[2] * w->src[2] * nbytes)
#pragma GCC unroll 4
                for (int v = 0; v < nv; v++)
                    acc[v] = combine(acc[v], load_channels(p, nbytes, x + v * GP_VL * nbytes, left), is_max);
        }
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++)
        gp_store_part(to + v * GP_VL, acc[v], left);
}

/* A row of results whose channels lie side by side in the source too: pixel by pixel, in registers. */
GP_INLINE void pool_pixels(const gp_pool *p, const int nbytes, const char *src, const gp_row *row, const int is_max)
{
    const gp_window *w = &p->rows.window;
    src += (row->n * w->src_n + row->c) * nbytes;
    tap_range taps[3] = {find_range(w, 0, row->od), find_range(w, 1, row->oh)};
    for (int64_t o = 0; o < w->out[2]; o++) {
        taps[2] = find_range(w, 2, o);
        const char *from = src;
        const int64_t at[3] = {row->od, row->oh, o};
        for (int axis = 0; axis < 3; axis++)
            from += (at[axis] * w->stride[axis] - w->pad[axis] + taps[axis].first * w->dilation[axis]) * w->src[axis] * nbytes;
        float *to = row->tile + o * row->ld;
        int64_t c = 0;
        for (; c + GP_POOL_VECTORS * GP_VL <= row->channels; c += GP_POOL_VECTORS * GP_VL)
            pool_vectors(p, nbytes, GP_POOL_VECTORS, is_max, from + c * nbytes, taps, GP_VL, to + c);
        for (; c < row->channels; c += GP_VL)
            pool_vectors(p, nbytes, 1, is_max, from + c * nbytes, taps, row->channels - c, to + c);
    }
}

/* `n` columns of a plane over the taps of two axes; src is at the first tap. */
GP_INLINE void combine_rows(const gp_window *w, const tap_range *taps, const float *src, int64_t n, float *line,
                            const int is_max)
{
    for (int64_t i = 0; i < n; i += GP_VL) {
        const float *column = src + i * w->src[2];
        gp_vf acc = start(is_max);
        for (int64_t d = 0; d < taps[0].count; d++)
            for (int64_t h = 0; h < taps[1].count; h++) {
                const float *x = column + d * w->dilation[0] * w->src[0] + h * w->dilation[1] * w->src[1];
                gp_vf v = {0};
                if (w->src[2] == 1)
                    v = gp_load_some(x, n - i);
                else
                    for (int k = 0; k < gp_min(GP_VL, n - i); k++)
                        v[k] = x[k * w->src[2]];
                acc = combine(acc, v, is_max);
            }
        gp_store_part(line + i, acc, n - i);
    }
}

/* Results along a line whose first element the first tap of the first result reads; step: the stride. */
GP_INLINE void combine_taps(const gp_window *w, const float *line, float *to, int64_t to_step, const int64_t step,
                            const int is_max)
{
    for (int64_t o = 0; o < w->out[2]; o += GP_VL) {
        gp_vf acc = start(is_max);
        for (int64_t k = 0; k < w->kernel[2]; k++)
            acc = combine(acc, gp_load_steps(line + o * step + k * w->dilation[2], step), is_max);
        if (to_step == 1)
            gp_store_part(to + o, acc, w->out[2] - o);
        else
            for (int64_t i = 0; i < gp_min(GP_VL, w->out[2] - o); i++)
                to[(o + i) * to_step] = acc[i];
    }
}

/* A row of results, channel by channel. The line is as long as the windows of whole vectors of results reach. */
GP_INLINE void pool_lines(const gp_pool *p, const float *src, const gp_row *row, float *line, const int is_max)
{
    const gp_window *w = &p->rows.window;
    const tap_range taps[2] = {find_range(w, 0, row->od), find_range(w, 1, row->oh)};
    const int64_t lanes = (w->out[2] + GP_VL - 1) / GP_VL * GP_VL;
    const int64_t length = lanes * w->stride[2] + (w->kernel[2] - 1) * w->dilation[2];
    const int64_t n = gp_max(gp_min(w->in[2], length - w->pad[2]), 0), at[2] = {row->od, row->oh};
    for (int64_t i = 0; i < length; i++)
        line[i] = is_max ? -INFINITY : 0;
    src += row->n * w->src_n + row->c * w->src_c;
    for (int axis = 0; axis < 2; axis++)
        src += (at[axis] * w->stride[axis] - w->pad[axis] + taps[axis].first * w->dilation[axis]) * w->src[axis];
    const int64_t to_channel = w->channels_last ? 1 : row->ld, to_step = w->channels_last ? row->ld : 1;
    for (int64_t c = 0; c < row->channels; c++, src += w->src_c) {
        float *to = row->tile + c * to_channel;
        combine_rows(w, taps, src, n, line + w->pad[2], is_max);
        if (w->stride[2] == 1)
            combine_taps(w, line, to, to_step, 1, is_max);
        else if (w->stride[2] == 2)
            combine_taps(w, line, to, to_step, 2, is_max);
        else
            combine_taps(w, line, to, to_step, w->stride[2], is_max);
    }
}

/* line: room for pool_lines. */
GP_INLINE void pool_row(const gp_pool *p, const float *src, const gp_row *row, float *line, const int is_max)
{
    const gp_window *w = &p->rows.window;
    if (w->channels_last && w->src_c == 1)
        pool_pixels(p, sizeof *src, (const char *)src, row, is_max);
    else
        pool_lines(p, src, row, line, is_max);
}

/* Room behind the tile: for divisors, then for a line. */
static float *find_room(const gp_pool *p, void *scratch)
{
    return (float *)((char *)scratch + p->rows.room_offset);
}

static void GP_KERNEL(f32_max_pool)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_pool *p = params;
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        pool_row(p, args[0], &row, find_room(p, scratch) + p->rows.window.out[2], 1);
        gp_row_end(&p->rows, &row, (const gp_eltwise *)(p + 1), args + 1);
    }
}

static void GP_KERNEL(f32_avg_pool)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_pool *p = params;
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        pool_row(p, args[0], &row, find_room(p, scratch) + p->rows.window.out[2], 0);
        divide(p, &row, find_room(p, scratch));
        gp_row_end(&p->rows, &row, (const gp_eltwise *)(p + 1), args + 1);
    }
}

static void GP_KERNEL(bytes_max_pool)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_pool *p = params;
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        pool_pixels(p, 1, args[0], &row, 1);
        gp_row_end(&p->rows, &row, (const gp_eltwise *)(p + 1), args + 1);
    }
}

static void GP_KERNEL(bytes_avg_pool)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_pool *p = params;
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        pool_pixels(p, 1, args[0], &row, 0);
        divide(p, &row, find_room(p, scratch));
        gp_row_end(&p->rows, &row, (const gp_eltwise *)(p + 1), args + 1);
    }
}

const gp_kernel_entry GP_KERNEL(pool_table)[] = {
    {"bytes_max_pool", GP_KERNEL(bytes_max_pool), sizeof(gp_pool)},
    {"bytes_avg_pool", GP_KERNEL(bytes_avg_pool), sizeof(gp_pool)},
    {"f32_max_pool", GP_KERNEL(f32_max_pool), sizeof(gp_pool)},
    {"f32_avg_pool", GP_KERNEL(f32_avg_pool), sizeof(gp_pool)},
    {NULL, NULL, 0},
};
