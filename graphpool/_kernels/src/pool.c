/* Maximum and average pooling: a task is one row of results, filled tap by tap of the kernel. Images of bytes, whose
 * channels lie side by side on both sides, are pooled as the numbers less their zero point.
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

static inline __attribute__((always_inline)) float combine(float acc, float x, int is_max)
{
    if (is_max)
        return x > acc || x != x ? x : acc; /* a NaN enters and stays */
    return acc + x;
}

/* acc(outer, inner) = combine(acc, src) with acc contiguous along inner. */
static inline __attribute__((always_inline)) void combine_all(float *acc, int64_t ld, const float *src,
                                                              int64_t src_outer, int64_t src_inner, int64_t outer,
                                                              int64_t inner, int is_max)
{
    for (int64_t i = 0; i < outer; ++i, acc += ld, src += src_outer)
        if (src_inner == 1)
            for (int64_t j = 0; j < inner; ++j)
                acc[j] = combine(acc[j], src[j], is_max);
        else
            for (int64_t j = 0; j < inner; ++j)
                acc[j] = combine(acc[j], src[j * src_inner], is_max);
}

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

/* acc and x lane by lane, as `combine`. */
GP_INLINE gp_vf combine_vectors(gp_vf acc, gp_vf x, const int is_max)
{
    const gp_vi enters = (x > acc) | (x != x);
    return is_max ? (gp_vf)(((gp_vi)x & enters) | ((gp_vi)acc & ~enters)) : acc + x;
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
        acc[v] = gp_splat(is_max ? -INFINITY : 0);
    for (int64_t d = 0; d < taps[0].count; d++)
        for (int64_t h = 0; h < taps[1].count; h++) {
            const char *x = src + (d * w->dilation[0] * w->src[0] + h * w->dilation[1] * w->src[1]) * nbytes;
            for (int64_t i = 0; i < taps[2].count; i++, x += w->dilation[2] * w->src[2] * nbytes)
#pragma GCC unroll 4
                for (int v = 0; v < nv; v++)
                    acc[v] = combine_vectors(acc[v], load_channels(p, nbytes, x + v * GP_VL * nbytes, left), is_max);
        }
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        float lanes[GP_VL];
        gp_store(left >= GP_VL ? to + v * GP_VL : lanes, acc[v]);
        if (left < GP_VL)
            memcpy(to, lanes, (size_t)left * sizeof *to);
    }
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

static inline __attribute__((always_inline)) void pool_row(const gp_pool *p, const float *src, const gp_row *row,
                                                           const int is_max)
{
    const gp_window *w = &p->rows.window;
    if (w->channels_last && w->src_c == 1) {
        pool_pixels(p, sizeof *src, (const char *)src, row, is_max);
        return;
    }
    src += row->n * w->src_n + row->c * w->src_c;
    for (int64_t i = 0; i < row->rows; ++i)
        for (int64_t j = 0; j < row->cols; ++j)
            row->tile[i * row->ld + j] = is_max ? -INFINITY : 0;
    for (int64_t kd = 0; kd < w->kernel[0]; ++kd)
        for (int64_t kh = 0; kh < w->kernel[1]; ++kh)
            for (int64_t kw = 0; kw < w->kernel[2]; ++kw) {
                const gp_tap tap = gp_find_tap(w, 0, row->od, row->oh, 0, w->out[2], kd, kh, kw);
                if (w->channels_last)
                    combine_all(row->tile + tap.first * row->ld, row->ld, src + tap.src, tap.src_step, w->src_c,
                                tap.count, row->channels, is_max);
                else
                    combine_all(row->tile + tap.first, row->ld, src + tap.src, w->src_c, tap.src_step, row->channels,
                                tap.count, is_max);
            }
}

static void GP_KERNEL(f32_max_pool)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_pool *p = params;
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        pool_row(p, args[0], &row, 1);
        gp_row_end(&p->rows, &row, (const gp_eltwise *)(p + 1), args + 1);
    }
}

static void GP_KERNEL(f32_avg_pool)(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    const gp_pool *p = params;
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        pool_row(p, args[0], &row, 0);
        divide(p, &row, (float *)((char *)scratch + p->rows.room_offset));
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
        divide(p, &row, (float *)((char *)scratch + p->rows.room_offset));
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
