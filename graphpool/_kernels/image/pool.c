/* Maximum and average pooling: a task is one row of results of a block of channels.
 *
 * Where channels lie side by side on both sides, vectors run along them: pixel by pixel, all taps in registers. Else
 * channels are taken one by one: the source rows of a window are combined into one line, with padding at its ends, and
 * then the taps along the line, so that a result costs as many loads as the kernel has rows and columns together. Images
 * of bytes, whose channels lie side by side, are pooled as the numbers less their zero point.
 *
 * args: src, dst, then what the epilogue reads beyond dst. */
#include <math.h>

#include "gemm/gp_requant.h"
#include "image/gp_window.h"

GP_RECORD(gp_pool, {
    gp_row_plan rows;
    int64_t counted[3]; /* average: coordinates below this count in the divisor */
    int64_t exclude_pad;
    int64_t src_dtype, zero; /* of bytes; zero: of unsigned ones, 128 more for signed ones */
    int64_t is_sparse;       /* whether lines hold no padding: windows reach far beyond the source */
});

/* How many taps of result `o` lie before coordinate `end` of an axis, and not before `least`. */
static int64_t count_taps(const gp_window *w, int axis, int64_t o, int64_t least, int64_t end)
{
    const int64_t begin = o * w->stride[axis] - w->pad[axis], step = w->dilation[axis];
    if (begin >= least && begin + (w->kernel[axis] - 1) * step < end)
        return w->kernel[axis]; /* nearly all windows, so that nearly none takes divisions */
    const int64_t first = begin < least ? (least - begin + step - 1) / step : 0;
    return gp_max(gp_min(gp_floor_div(end - 1 - begin, step) + 1, w->kernel[axis]) - first, 0);
}

/* What the sums of a row are divided by. A window without any counted cell gives 0. */
static void find_divisors(const gp_pool *p, int64_t od, int64_t oh, float *divisors)
{
    const gp_window *w = &p->rows.window;
    const int64_t at[2] = {od, oh};
    double above = 1;
    for (int axis = 0; axis < 2; axis++)
        above *= (double)count_taps(w, axis, at[axis], p->exclude_pad ? 0 : -w->pad[axis], p->counted[axis]);
    for (int64_t o = 0; o < w->out[2]; ++o) {
        const double cells = above * (double)count_taps(w, 2, o, p->exclude_pad ? 0 : -w->pad[2], p->counted[2]);
        divisors[o] = cells > 1 ? (float)cells : 1;
    }
}

/* Vectors of channels that a pixel keeps in registers. */
#define GP_POOL_VECTORS 4

/* What result `o` reads of the source along an axis: `count` coordinates from `first` on, `step` apart. */
typedef struct {
    int64_t first, count, step;
} tap_range;

static tap_range find_range(const gp_window *w, int axis, int64_t o)
{
    const int64_t begin = o * w->stride[axis] - w->pad[axis], step = w->dilation[axis];
    const int64_t count = count_taps(w, axis, o, 0, w->in[axis]);
    if (count == 0)
        return (tap_range){0, 0, 0};
    return (tap_range){begin < 0 ? (begin % step + step) % step : begin, count, count > 1 ? step : 0};
}

/* The sum, or the larger one, lane by lane; a NaN enters and stays. */
GP_INLINE gp_vf combine(gp_vf acc, gp_vf x, const int is_max)
{
    return is_max ? gp_vselect(gp_vequal(x, x), gp_vmax(x, acc), x) : acc + x;
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
                            const tap_range *taps, float divisor, int64_t left, float *to)
{
    const gp_window *w = &p->rows.window;
    gp_vf acc[GP_POOL_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++)
        acc[v] = start(is_max);
    for (int64_t d = 0; d < taps[0].count; d++)
        for (int64_t h = 0; h < taps[1].count; h++) {
            const char *x = src + (d * taps[0].step * w->src[0] + h * taps[1].step * w->src[1]) * nbytes;
            for (int64_t i = 0; i < taps[2].count; i++, x += taps[2].step * w->src[2] * nbytes)
#pragma GCC unroll 4
                for (int v = 0; v < nv; v++)
                    acc[v] = combine(acc[v], load_channels(p, nbytes, x + v * GP_VL * nbytes, left), is_max);
        }
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++)
        gp_store_part(to + v * GP_VL, is_max ? acc[v] : acc[v] / divisor, left);
}

/* A row of results whose channels lie side by side in the source too: pixel by pixel, in registers. */
GP_INLINE void pool_pixels(const gp_pool *p, const int nbytes, const char *src, const gp_row *row,
                           const float *divisors, const int is_max)
{
    const gp_window *w = &p->rows.window;
    src += (row->n * w->src_n + row->c) * nbytes;
    tap_range taps[3] = {find_range(w, 0, row->od), find_range(w, 1, row->oh)};
    for (int64_t o = 0; o < w->out[2]; o++) {
        taps[2] = find_range(w, 2, o);
        const char *from = src;
        for (int axis = 0; axis < 3; axis++)
            from += taps[axis].first * w->src[axis] * nbytes;
        float *to = row->tile + o * row->ld, divisor = is_max ? 1 : divisors[o];
        int64_t c = 0;
        for (; c + GP_POOL_VECTORS * GP_VL <= row->channels; c += GP_POOL_VECTORS * GP_VL)
            pool_vectors(p, nbytes, GP_POOL_VECTORS, is_max, from + c * nbytes, taps, divisor, GP_VL, to + c);
        for (; c < row->channels; c += GP_VL)
            pool_vectors(p, nbytes, 1, is_max, from + c * nbytes, taps, divisor, row->channels - c, to + c);
    }
}

/* Vectors of a line at once. */
#define GP_LINE_VECTORS 4

/* GP_VL elements `step` apart, of which `left` exist, filled up with what a window begins with. */
GP_INLINE gp_vf load_columns(const float *x, int64_t step, int64_t left, const int is_max)
{
    if (step == 1)
        return left >= GP_VL ? gp_load(x) : gp_load_part(x, gp_max(left, 0), is_max ? -INFINITY : 0);
    gp_vf v = start(is_max);
    for (int k = 0; k < gp_min(GP_VL, left); k++)
        v[k] = x[k * step];
    return v;
}

/* `nv` vectors of columns over the taps of two axes; src is at the first tap. */
GP_INLINE void combine_columns(const int nv, const gp_window *w, const tap_range *taps, const float *src, int64_t step,
                               int64_t left, float *line, const int is_max)
{
    const int64_t d_step = taps[0].step * w->src[0], h_step = taps[1].step * w->src[1];
    gp_vf acc[GP_LINE_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++)
        acc[v] = start(is_max);
    for (int64_t d = 0; d < taps[0].count; d++, src += d_step) {
        const float *x = src;
        for (int64_t h = 0; h < taps[1].count; h++, x += h_step)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[v] = combine(acc[v], load_columns(x + v * GP_VL * step, step, left - v * GP_VL, is_max), is_max);
    }
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++)
        gp_store(line + v * GP_VL, acc[v]);
}

/* All columns of a plane, in whole vectors. */
GP_INLINE void combine_rows(const gp_window *w, const tap_range *taps, const float *src, int64_t step, int64_t n,
                            float *line, const int is_max)
{
    int64_t i = 0;
    for (; i + GP_LINE_VECTORS * GP_VL <= n; i += GP_LINE_VECTORS * GP_VL)
        combine_columns(GP_LINE_VECTORS, w, taps, src + i * step, step, GP_LINE_VECTORS * GP_VL, line + i, is_max);
    for (; i + GP_VL < n; i += 2 * GP_VL)
        combine_columns(2, w, taps, src + i * step, step, n - i, line + i, is_max);
    if (i < n)
        combine_columns(1, w, taps, src + i * step, step, n - i, line + i, is_max);
}

/* `nv` vectors of results along a line whose first element the first tap of the first result reads; step: the stride. */
GP_INLINE void combine_line(const int nv, const gp_window *w, const float *line, const float *divisors, float *to,
                            int64_t to_step, int64_t left, const int64_t step, const int is_max)
{
    gp_vf acc[2] = {start(is_max), start(is_max)};
    for (int64_t k = 0; k < w->kernel[2]; k++, line += w->dilation[2])
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[v] = combine(acc[v], gp_load_steps(line + v * GP_VL * step, step), is_max);
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        const int64_t count = gp_min(left - v * GP_VL, GP_VL);
        if (!is_max)
            acc[v] /= count < GP_VL ? gp_load_part(divisors + v * GP_VL, count, 1) : gp_load(divisors + v * GP_VL);
        if (to_step == 1)
            gp_store_part(to + v * GP_VL, acc[v], count);
        else
            for (int64_t i = 0; i < count; i++)
                to[(v * GP_VL + i) * to_step] = acc[v][i];
    }
}

GP_INLINE void combine_taps(const gp_window *w, const float *line, const float *divisors, float *to, int64_t to_step,
                            const int64_t step, const int is_max)
{
    int64_t o = 0;
    for (; o + GP_VL < w->out[2]; o += 2 * GP_VL)
        combine_line(2, w, line + o * step, divisors + o, to + o * to_step, to_step, w->out[2] - o, step, is_max);
    if (o < w->out[2])
        combine_line(1, w, line + o * step, divisors + o, to + o * to_step, to_step, w->out[2] - o, step, is_max);
}

/* Lines that are filled before their taps are combined: what was just stored is slow to load at another place. */
#define GP_POOL_LINES 8

/* The lines of some channels, `length` elements each, and what they are made of and become. */
typedef struct {
    const gp_window *window;
    tap_range taps[2];
    const float *src, *divisors; /* src: of the first channel, at the first tap of n columns */
    float *lines, *to;           /* to: of the first channel */
    int64_t channels, n, length, to_channel, to_step;
    int64_t begin; /* element of a line that holds the first column */
} line_block;

/* Each step for all channels is a function of its own, so that its loops have all registers. */
#define GP_DEFINE_LINES(suffix, is_max)                                                                                \
    static __attribute__((noinline)) void fill_lines_##suffix(const line_block *b)                                     \
    {                                                                                                                  \
        const gp_window *w = b->window;                                                                                \
        for (int64_t c = 0; c < b->channels; c++) {                                                                    \
            float *line = b->lines + c * b->length + b->begin;                                                         \
            if (w->src[2] == 1)                                                                                        \
                combine_rows(w, b->taps, b->src + c * w->src_c, 1, b->n, line, is_max);                                \
            else                                                                                                       \
                combine_rows(w, b->taps, b->src + c * w->src_c, w->src[2], b->n, line, is_max);                        \
        }                                                                                                              \
    }                                                                                                                  \
    static __attribute__((noinline)) void read_lines_##suffix(const line_block *b)                                     \
    {                                                                                                                  \
        const gp_window *w = b->window;                                                                                \
        for (int64_t c = 0; c < b->channels; c++) {                                                                    \
            const float *line = b->lines + c * b->length;                                                              \
            float *to = b->to + c * b->to_channel;                                                                     \
            if (w->stride[2] == 1)                                                                                     \
                combine_taps(w, line, b->divisors, to, b->to_step, 1, is_max);                                         \
            else if (w->stride[2] == 2)                                                                                \
                combine_taps(w, line, b->divisors, to, b->to_step, 2, is_max);                                         \
            else                                                                                                       \
                combine_taps(w, line, b->divisors, to, b->to_step, w->stride[2], is_max);                              \
        }                                                                                                              \
    }

GP_DEFINE_LINES(max, 1)
GP_DEFINE_LINES(avg, 0)

/* The same where lines hold nothing but the source: result by result, the taps that lie inside. */
static void read_sparse_lines(const line_block *b, int is_max)
{
    const gp_window *w = b->window;
    for (int64_t o = 0; o < w->out[2]; o++) {
        const tap_range taps = find_range(w, 2, o);
        for (int64_t c = 0; c < b->channels; c++) {
            const float *x = b->lines + c * b->length + taps.first;
            float acc = start(is_max)[0];
            for (int64_t i = 0; i < taps.count; i++, x += taps.step)
                acc = !is_max ? acc + *x : *x > acc || *x != *x ? *x : acc;
            b->to[c * b->to_channel + o * b->to_step] = is_max ? acc : acc / b->divisors[o];
        }
    }
}

/* How far the windows of whole vectors of results reach along a line. */
static int64_t find_reach(const gp_window *w)
{
    const int64_t results = (w->out[2] + GP_VL - 1) / GP_VL * GP_VL;
    return results * w->stride[2] + (w->kernel[2] - 1) * w->dilation[2];
}

/* A row of results, some channels at a time. Lines are a vector longer than windows reach, or than the source; what is
 * padding of theirs stays so from row to row. */
static void pool_lines(const gp_pool *p, const float *src, const gp_row *row, const float *divisors, float *lines,
                       int is_max)
{
    const gp_window *w = &p->rows.window;
    const int64_t begin = p->is_sparse ? 0 : w->pad[2], reach = p->is_sparse ? w->in[2] : find_reach(w);
    line_block b = {.window = w, .taps = {find_range(w, 0, row->od), find_range(w, 1, row->oh)}, .divisors = divisors,
                    .lines = lines, .n = gp_max(gp_min(w->in[2], reach - begin), 0), .length = reach + GP_VL,
                    .to_channel = w->channels_last ? 1 : row->ld, .to_step = w->channels_last ? row->ld : 1,
                    .begin = begin};
    src += row->n * w->src_n + row->c * w->src_c;
    for (int axis = 0; axis < 2; axis++)
        src += b.taps[axis].first * w->src[axis];
    for (int64_t c = 0; c < row->channels; c += GP_POOL_LINES) {
        b.src = src + c * w->src_c;
        b.to = row->tile + c * b.to_channel;
        b.channels = gp_min(GP_POOL_LINES, row->channels - c);
        (is_max ? fill_lines_max : fill_lines_avg)(&b);
        if (p->is_sparse)
            read_sparse_lines(&b, is_max);
        else
            (is_max ? read_lines_max : read_lines_avg)(&b);
    }
}

/* Tasks of the kernels below; behind the tile lie divisors, then lines. */
GP_INLINE void pool(const gp_pool *p, void *const *args, int64_t begin, int64_t end, void *scratch, const int nbytes,
                    const int is_max)
{
    const gp_window *w = &p->rows.window;
    const int in_pixels = nbytes == 1 || (w->channels_last && w->src_c == 1);
    float *divisors = (float *)((char *)scratch + p->rows.room_offset), *lines = divisors + w->out[2];
    for (int64_t i = 0; !in_pixels && !p->is_sparse && i < GP_POOL_LINES * (find_reach(w) + GP_VL); i++)
        lines[i] = start(is_max)[0];
    for (int64_t task = begin; task < end; ++task) {
        const gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        if (!is_max)
            find_divisors(p, row.od, row.oh, divisors);
        if (in_pixels)
            pool_pixels(p, nbytes, args[0], &row, divisors, is_max);
        else
            pool_lines(p, args[0], &row, divisors, lines, is_max);
        gp_row_end(&p->rows, &row, (const gp_eltwise *)(p + 1), args + 1);
    }
}

#define GP_DEFINE_POOL(name, nbytes, is_max)                                                                           \
    GP_DEFINE_KERNEL(name)                                                                                             \
    {                                                                                                                  \
        pool(params, args, begin, end, scratch, nbytes, is_max);                                                       \
    }

GP_DEFINE_POOL(f32_max_pool, 4, 1)
GP_DEFINE_POOL(f32_avg_pool, 4, 0)
GP_DEFINE_POOL(x8_max_pool, 1, 1)
GP_DEFINE_POOL(x8_avg_pool, 1, 0)

const gp_kernel_entry GP_KERNEL(pool_table)[] = {
    GP_ENTRY(x8_max_pool, gp_pool),
    GP_ENTRY(x8_avg_pool, gp_pool),
    GP_ENTRY(f32_max_pool, gp_pool),
    GP_ENTRY(f32_avg_pool, gp_pool),
    GP_INNER(gp_row_plan),
    GP_NUMBER(GP_POOL_LINES),
    GP_TABLE_END,
};
