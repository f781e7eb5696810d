/* Maximum and average pooling: a task is one row of results of a block of channels.
 *
 * Where channels lie side by side on both sides, vectors run along them: pixel by pixel, all taps in registers. Else
 * channels are taken one by one: the source rows of a window are combined first and then the taps along the row, so
 * that a result costs as many loads as the kernel has rows and columns together. What was combined stays in registers
 * where windows are narrow, else it is a line in memory, with padding at its ends. Images of bytes, whose channels lie
 * side by side, are pooled as the numbers less their zero point.
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
static __attribute__((noinline)) int64_t count_taps_at_edge(const gp_window *w, int axis, int64_t begin, int64_t least,
                                                            int64_t end)
{
    const int64_t step = w->dilation[axis], first = begin < least ? (least - begin + step - 1) / step : 0;
    return gp_max(gp_min(gp_floor_div(end - 1 - begin, step) + 1, w->kernel[axis]) - first, 0);
}

GP_INLINE int64_t count_taps(const gp_window *w, int axis, int64_t o, int64_t least, int64_t end)
{
    const int64_t begin = o * w->stride[axis] - w->pad[axis];
    if (begin >= least && begin + (w->kernel[axis] - 1) * w->dilation[axis] < end)
        return w->kernel[axis]; /* nearly all windows, so that nearly none takes divisions */
    return count_taps_at_edge(w, axis, begin, least, end);
}

/* Taps of result `o` along an axis that count in the divisor. */
GP_INLINE int64_t count_cells(const gp_pool *p, int axis, int64_t o)
{
    return count_taps(&p->rows.window, axis, o, p->exclude_pad ? 0 : -p->rows.window.pad[axis], p->counted[axis]);
}

/* Cells of the divisor in the two axes of a row. */
GP_INLINE float count_above(const gp_pool *p, int64_t od, int64_t oh)
{
    return (float)((double)count_cells(p, 0, od) * (double)count_cells(p, 1, oh));
}

/* What sums are divided by: the cells along the row times those of the other axes; where none counts, 1. */
GP_INLINE gp_vf find_divisor(gp_vf cells, float above)
{
    return gp_vat_least(cells * above, gp_splat(1));
}

/* Vectors of channels that a pixel keeps in registers. */
#define GP_POOL_VECTORS 4

/* What result `o` reads of the source along an axis: `count` coordinates from `first` on, `step` apart. */
typedef struct {
    int64_t first, count, step;
} tap_range;

GP_INLINE tap_range find_range(const gp_window *w, int axis, int64_t o)
{
    const int64_t begin = o * w->stride[axis] - w->pad[axis], step = w->dilation[axis];
    const int64_t count = count_taps(w, axis, o, 0, w->in[axis]);
    if (count == 0)
        return (tap_range){0, 0, 0};
    return (tap_range){begin < 0 ? (begin % step + step) % step : begin, count, count > 1 ? step : 0};
}

/* What becomes of the cells of a window: their sum, or the largest. A NaN enters and stays; of numbers alone, among
 * which a caller looks for NaNs, the largest takes fewer instructions. */
enum { POOL_SUM, POOL_MAX, POOL_MAX_OF_NUMBERS };

GP_INLINE gp_vf combine(gp_vf acc, gp_vf x, const int kind)
{
    if (kind == POOL_SUM)
        return acc + x;
    return kind == POOL_MAX ? gp_vselect(gp_vequal(x, x), gp_vmax(x, acc), x) : gp_vmax(x, acc);
}

/* What `combine` begins with. */
GP_INLINE gp_vf start(const int kind)
{
    return gp_splat(kind == POOL_SUM ? 0 : -INFINITY);
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
                            const tap_range *taps, gp_vf divisor, int64_t left, float *to)
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

typedef uint8_t pool_bytes __attribute__((vector_size(GP_POOL_VECTORS * GP_VL)));

/* The larger ones of two vectors of unsigned bytes. */
GP_INLINE pool_bytes larger_bytes(pool_bytes a, pool_bytes b)
{
#if defined(__AVX512BW__)
    return (pool_bytes)_mm512_max_epu8((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (pool_bytes)_mm256_max_epu8((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (pool_bytes)_mm_max_epu8((__m128i)a, (__m128i)b);
#else
    const pool_bytes is_larger = (pool_bytes)(a > b);
    return (a & is_larger) | (b & ~is_larger);
#endif
}

/* The largest of `left` channels of bytes of one pixel over the taps of three axes, as a number: unsigned bytes are compared
 * as they are, and signed ones plus 128. */
GP_INLINE void find_largest_bytes(const gp_pool *p, const char *src, const tap_range *taps, int64_t left, float *to)
{
    const gp_window *w = &p->rows.window;
    const uint8_t flip = p->src_dtype == GP_S8 ? 0x80 : 0;
    const int is_empty = taps[0].count * taps[1].count * taps[2].count == 0;
    pool_bytes most = {0}, here = {0};
    for (int64_t d = 0; d < taps[0].count; d++)
        for (int64_t h = 0; h < taps[1].count; h++) {
            const char *x = src + d * taps[0].step * w->src[0] + h * taps[1].step * w->src[1];
            for (int64_t i = 0; i < taps[2].count; i++, x += taps[2].step * w->src[2]) {
                if (left >= (int64_t)sizeof here)
                    memcpy(&here, x, sizeof here);
                else
                    memcpy(&here, x, (size_t)left);
                most = larger_bytes(here ^ flip, most);
            }
        }
    char bytes[sizeof most];
    memcpy(bytes, &most, sizeof most);
    for (int64_t c = 0; c < left; c += GP_VL) {
        const gp_vi numbers = gp_load_bytes(0, bytes + c, GP_VL) - (int32_t)p->zero;
        gp_store_part(to + c, is_empty ? start(POOL_MAX) : __builtin_convertvector(numbers, gp_vf), left - c);
    }
}

/* A row of results whose channels lie side by side in the source too: pixel by pixel, in registers. */
GP_INLINE void pool_pixels(const gp_pool *p, const int nbytes, const char *src, const gp_row *row,
                           const float *cells, float above, const int is_max)
{
    const gp_window *w = &p->rows.window;
    src += (row->n * w->src_n + row->c) * nbytes;
    tap_range taps[3] = {find_range(w, 0, row->od), find_range(w, 1, row->oh)};
    for (int64_t o = 0; o < w->out[2]; o++) {
        taps[2] = find_range(w, 2, o);
        const char *from = src;
        for (int axis = 0; axis < 3; axis++)
            from += taps[axis].first * w->src[axis] * nbytes;
        float *to = row->tile + o * row->ld;
        const gp_vf divisor = is_max ? gp_splat(1) : find_divisor(gp_splat(cells[o]), above);
        int64_t c = 0;
        for (; nbytes == 1 && is_max && c < row->channels; c += sizeof(pool_bytes)) {
            const int64_t first = gp_max(gp_min(c, row->channels - (int64_t)sizeof(pool_bytes)), 0); /* some twice */
            find_largest_bytes(p, from + first, taps, gp_min(row->channels, sizeof(pool_bytes)), to + first);
        }
        for (; c + GP_POOL_VECTORS * GP_VL <= row->channels; c += GP_POOL_VECTORS * GP_VL)
            pool_vectors(p, nbytes, GP_POOL_VECTORS, is_max, from + c * nbytes, taps, divisor, GP_VL, to + c);
        for (; c < row->channels; c += GP_VL)
            pool_vectors(p, nbytes, 1, is_max, from + c * nbytes, taps, divisor, row->channels - c, to + c);
    }
}

/* Rows of results of a channel at once. */
#define GP_POOL_ROWS 8

/* Vectors of a line at once. */
#define GP_LINE_VECTORS 4

/* Some rows of results of a channel, what they are made of and where they lie. */
typedef struct {
    const gp_pool *pool;
    tap_range depths;
    const float *src, *cells; /* src: of the plane; cells: of each column, in the divisor */
    float *to;                /* of the first row */
    int64_t od, oh, n_rows, to_row, to_step;
    int64_t channels, to_channel; /* that lie behind this one and are pooled alike, this one included */
    const float *blank; /* a row of what windows begin with */
    float *lines;       /* `length` elements for each row; `n` columns lie there from element `begin` on */
    int64_t n, length, begin;
} row_block;

/* What a row of results reads: its first tap in the first column, taps of two axes; and its cells of the divisor. */
typedef struct {
    const float *src;
    int64_t depths, heights, depth_step, height_step;
    float above;
} row_source;

GP_INLINE row_source find_source(const row_block *b, int64_t row, const int kind)
{
    const gp_window *w = &b->pool->rows.window;
    const tap_range heights = find_range(w, 1, b->oh + row);
    return (row_source){.src = b->src + b->depths.first * w->src[0] + heights.first * w->src[1],
                        .depths = b->depths.count,
                        .heights = heights.count,
                        .depth_step = b->depths.step * w->src[0],
                        .height_step = heights.step * w->src[1],
                        .above = kind == POOL_SUM ? count_above(b->pool, b->od, b->oh + row) : 0};
}

/* GP_VL elements `step` apart, of which `left` exist, else what a window begins with. */
GP_INLINE gp_vf load_columns(const float *x, int64_t step, int64_t left, const int kind)
{
    if (step == 1)
        return left >= GP_VL ? gp_load(x) : gp_load_part(x, gp_max(left, 0), start(kind)[0]);
    gp_vf v = start(kind);
    for (int64_t k = 0; k < gp_min(GP_VL, left); k++)
        v[k] = x[k * step];
    return v;
}

/* `nv` vectors of columns from the one at `at` on, of which those below `end` exist, over the taps of two axes. */
GP_INLINE void combine_columns(const int nv, const row_source *r, int64_t at, int64_t step, int64_t end, gp_vf *columns,
                               const int kind)
{
    gp_vf acc[GP_LINE_VECTORS];
    GP_EACH (v, nv)
        acc[v] = start(kind);
    for (int64_t d = 0; d < r->depths; d++) {
        const float *x = r->src + at * step + d * r->depth_step;
        for (int64_t h = 0; h < r->heights; h++, x += r->height_step)
            GP_EACH (v, nv)
                acc[v] = combine(acc[v], load_columns(x + v * GP_VL * step, step, end - at - v * GP_VL, kind), kind);
    }
    GP_EACH (v, nv)
        columns[v] = acc[v];
}

/* A vector of results, of which `left` exist; cells: of the first one. */
GP_INLINE void finish_results(gp_vf acc, const float *cells, float above, float *to, int64_t to_step, int64_t left,
                              const int kind)
{
    if (kind == POOL_SUM)
        acc /= find_divisor(left < GP_VL ? gp_load_part(cells, left, 0) : gp_load(cells), above);
    if (to_step == 1) {
        gp_store_part(to, acc, left);
        return;
    }
    float results[GP_VL];
    gp_store(results, acc);
    for (int64_t i = 0; i < gp_min(left, GP_VL); i++)
        to[i * to_step] = results[i];
}

/* ---- windows through lines in memory ---- */

typedef void pool_block_fn(const row_block *b);

/* All columns of a row, in whole vectors. */
GP_INLINE void fill_line(const row_block *b, int64_t row, int64_t step, const int kind)
{
    float *line = b->lines + row * b->length + b->begin;
    const row_source r = find_source(b, row, kind);
    gp_vf columns[GP_LINE_VECTORS];
    int64_t i = 0;
    for (; i + GP_LINE_VECTORS * GP_VL <= b->n; i += GP_LINE_VECTORS * GP_VL) {
        combine_columns(GP_LINE_VECTORS, &r, i, step, b->n, columns, kind);
        GP_EACH (v, GP_LINE_VECTORS)
            gp_store(line + i + v * GP_VL, columns[v]);
    }
    for (; i < b->n; i += GP_VL) {
        combine_columns(1, &r, i, step, b->n, columns, kind);
        gp_store(line + i, columns[0]);
    }
}

/* `nv` vectors of results from result `o` on, along a line whose first element the first tap of the first result reads;
 * step: the stride. */
GP_INLINE void combine_line(const int nv, const row_block *b, int64_t row, float above, int64_t o, int64_t to_step,
                            const int64_t step, const int kind)
{
    const gp_window *w = &b->pool->rows.window;
    const float *line = b->lines + row * b->length + o * step;
    gp_vf acc[2] = {start(kind), start(kind)};
    for (int64_t k = 0; k < w->kernel[2]; k++, line += w->dilation[2])
        GP_EACH (v, nv)
            acc[v] = combine(acc[v], gp_load_steps(line + v * GP_VL * step, step), kind);
    GP_EACH (v, nv) {
        const int64_t at = o + v * GP_VL;
        finish_results(acc[v], b->cells + at, above, b->to + row * b->to_row + at * to_step, to_step, w->out[2] - at,
                       kind);
    }
}

GP_INLINE void read_line(const row_block *b, int64_t row, int64_t to_step, const int64_t step, const int kind)
{
    const int64_t n = b->pool->rows.window.out[2];
    const float above = kind == POOL_SUM ? count_above(b->pool, b->od, b->oh + row) : 0;
    int64_t o = 0;
    for (; o + GP_VL < n; o += 2 * GP_VL)
        combine_line(2, b, row, above, o, to_step, step, kind);
    if (o < n)
        combine_line(1, b, row, above, o, to_step, step, kind);
}

/* All lines are filled before their taps are combined, since what was just stored is slow to load at another place.
 * Each step for all rows is a function of its own, so that its loops have all registers. */
#define GP_DEFINE_LINES(kind)                                                                                          \
    static __attribute__((noinline)) void fill_lines_##kind(const row_block *b)                                        \
    {                                                                                                                  \
        const int64_t step = b->pool->rows.window.src[2];                                                              \
        for (int64_t row = 0; row < b->n_rows; row++) {                                                                \
            if (step == 1)                                                                                             \
                fill_line(b, row, 1, kind);                                                                            \
            else                                                                                                       \
                fill_line(b, row, step, kind);                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    static __attribute__((noinline)) void read_lines_##kind(const row_block *b)                                        \
    {                                                                                                                  \
        const int64_t stride = b->pool->rows.window.stride[2];                                                         \
        for (int64_t row = 0; row < b->n_rows; row++) {                                                                \
            if (stride == 1 && b->to_step == 1)                                                                        \
                read_line(b, row, 1, 1, kind);                                                                         \
            else if (stride == 2 && b->to_step == 1)                                                                   \
                read_line(b, row, 1, 2, kind);                                                                         \
            else                                                                                                       \
                read_line(b, row, b->to_step, stride, kind);                                                           \
        }                                                                                                              \
    }

GP_DEFINE_LINES(POOL_SUM)
GP_DEFINE_LINES(POOL_MAX)
GP_DEFINE_LINES(POOL_MAX_OF_NUMBERS)

static pool_block_fn *const fill_lines[] = {fill_lines_POOL_SUM, fill_lines_POOL_MAX, fill_lines_POOL_MAX_OF_NUMBERS};
static pool_block_fn *const read_lines[] = {read_lines_POOL_SUM, read_lines_POOL_MAX, read_lines_POOL_MAX_OF_NUMBERS};

/* The results of lines that hold nothing but the source, one by one, from the taps that lie inside. */
static void read_sparse_lines(const row_block *b, int is_max)
{
    const gp_window *w = &b->pool->rows.window;
    for (int64_t row = 0; row < b->n_rows; row++) {
        const float above = is_max ? 0 : count_above(b->pool, b->od, b->oh + row);
        for (int64_t o = 0; o < w->out[2]; o++) {
            const tap_range taps = find_range(w, 2, o);
            const float *x = b->lines + row * b->length + taps.first;
            float acc = start(is_max)[0];
            for (int64_t i = 0; i < taps.count; i++, x += taps.step)
                acc = !is_max ? acc + *x : *x > acc || *x != *x ? *x : acc;
            if (!is_max)
                acc /= find_divisor(gp_splat(b->cells[o]), above)[0];
            b->to[row * b->to_row + o * b->to_step] = acc;
        }
    }
}

/* Whether a run may hold NaNs: none where the answer is 0. */
static int has_nans(const float *x, int64_t n)
{
    gp_vmask odd = {0};
    int64_t i = 0;
    for (; i + 4 * GP_VL <= n; i += 4 * GP_VL)
        odd |= gp_vunordered(gp_load(x + i), gp_load(x + i + GP_VL)) |
               gp_vunordered(gp_load(x + i + 2 * GP_VL), gp_load(x + i + 3 * GP_VL));
    for (; i < n; i += GP_VL)
        odd |= gp_vunordered(gp_load_some(x + i, n - i), gp_splat(0));
    return gp_is_any(odd);
}

/* How to find the largest cells of rows of results: of numbers alone if nearly all rows of the source are read anyway
 * and hold no NaN. */
static int find_max_kind(const row_block *b)
{
    const gp_window *w = &b->pool->rows.window;
    if (w->src[2] != 1 || w->stride[1] > w->kernel[1] || (b->depths.count > 1 && b->depths.step != 1))
        return POOL_MAX;
    const int64_t first = gp_max(b->oh * w->stride[1] - w->pad[1], 0);
    const int64_t last = (b->oh + b->n_rows - 1) * w->stride[1] - w->pad[1] + (w->kernel[1] - 1) * w->dilation[1];
    const int64_t end = gp_min(last + 1, w->in[1]), is_dense = w->src[1] == w->in[2];
    int is_odd = 0;
    for (int64_t d = 0; d < b->depths.count && first < end; d++) {
        const float *x = b->src + (b->depths.first + d) * w->src[0] + first * w->src[1];
        if (is_dense)
            is_odd |= has_nans(x, (end - first) * w->in[2]);
        for (int64_t h = first; h < end && !is_dense; h++, x += w->src[1])
            is_odd |= has_nans(x, w->in[2]);
    }
    return is_odd ? POOL_MAX : POOL_MAX_OF_NUMBERS;
}

static void pool_by_lines(const row_block *b, int kind)
{
    fill_lines[kind](b);
    if (b->pool->is_sparse)
        read_sparse_lines(b, kind != POOL_SUM);
    else
        read_lines[kind](b);
}

/* ---- narrow windows, in registers ---- */

/* Taps of two axes that a window may have here. */
#define GP_NARROW_TAPS 9

/* Rows of results, as pool_narrow_columns wants them. */
typedef struct {
    const float *taps[GP_POOL_ROWS * GP_NARROW_TAPS]; /* rows of the source that each row of results reads */
    float above[GP_POOL_ROWS];
    gp_vf kept[GP_POOL_ROWS][2]; /* of each row, the vectors of columns before those at hand */
} narrow_rows;

/* A vector of results of all rows, from result `o` on: of `stride` vectors of columns, of which the first one lies at
 * `at`. Where windows are wider, results are those of the vectors before, which these replace. */
GP_INLINE void pool_narrow_columns(const row_block *b, narrow_rows *rows, int64_t n_taps, int64_t o, int64_t at,
                                   const int is_whole, const int is_first, const int width, const int stride,
                                   const int kind)
{
    const gp_window *w = &b->pool->rows.window;
    const int64_t low = -at, high = w->in[2] - at, left = w->out[2] - o, to_row = b->to_row, n_rows = b->n_rows;
    const float *const *taps = rows->taps, *cells = b->cells + o, fill = kind == POOL_SUM ? 0 : -INFINITY;
    float *to = b->to + o;
    for (int64_t row = 0; row < n_rows; row++, to += to_row, taps += n_taps) {
        gp_vf found[2] = {start(kind), start(kind)}, here[2];
        for (int64_t t = 0; t < n_taps; t++)
            GP_EACH (v, stride) {
                const float *x = taps[t] + at + v * GP_VL;
                const gp_vf columns =
                    is_whole ? gp_load(x) : gp_load_between(x, low - v * GP_VL, high - v * GP_VL, fill);
                found[v] = t == 0 ? columns : combine(found[v], columns, kind);
            }
        GP_EACH (v, stride) {
            here[v] = width > stride && !is_first ? rows->kept[row][v] : found[v];
            if (width > stride)
                rows->kept[row][v] = found[v];
        }
        if (is_first)
            continue;
        const gp_vf first = stride == 1 ? here[0] : gp_pick_both(here[0], here[1], GP_LANE_NUMBERS * 2);
        gp_vf acc = first;
        if (stride == 2)
            acc = combine(acc, gp_pick_both(here[0], here[1], GP_LANE_NUMBERS * 2 + 1), kind);
        for (int k = stride; k < width; k++)
            acc = combine(acc, gp_pick_both(first, found[0], GP_LANE_NUMBERS + (stride == 1 ? k : 1)), kind);
        finish_results(acc, cells, rows->above[row], to, 1, left, kind);
    }
}

/* All results of the rows; windows are `width` columns wide and `stride` apart. */
GP_INLINE void pool_narrow_rows(const row_block *b, narrow_rows *rows, const int64_t n_taps, const int width,
                                const int stride, const int kind)
{
    const gp_window *w = &b->pool->rows.window;
    int64_t at = -w->pad[2];
    if (width > stride) {
        pool_narrow_columns(b, rows, n_taps, 0, at, 0, 1, width, stride, kind);
        at += stride * GP_VL;
    }
    for (int64_t o = 0; o < w->out[2]; o += GP_VL, at += stride * GP_VL) {
        if (at >= 0 && at + stride * GP_VL <= w->in[2])
            pool_narrow_columns(b, rows, n_taps, o, at, 1, 0, width, stride, kind);
        else
            pool_narrow_columns(b, rows, n_taps, o, at, 0, 0, width, stride, kind);
    }
}

/* The taps of a row of results of the first channel, and how far they are from those of the next one; those in the
 * padding are the blank row. */
GP_INLINE void find_narrow_taps(const row_block *b, int64_t row, const float **taps, int64_t *to_next)
{
    const gp_window *w = &b->pool->rows.window;
    const int64_t top = (b->oh + row) * w->stride[1] - w->pad[1], front = b->od * w->stride[0] - w->pad[0];
    for (int64_t d = 0; d < w->kernel[0]; d++)
        for (int64_t h = 0; h < w->kernel[1]; h++) {
            const int64_t z = front + d * w->dilation[0], y = top + h * w->dilation[1];
            const int is_inside = z >= 0 && z < w->in[0] && y >= 0 && y < w->in[1];
            *taps++ = is_inside ? b->src + z * w->src[0] + y * w->src[1] : b->blank;
            *to_next++ = is_inside ? w->src_c : 0;
        }
}

GP_INLINE void pool_narrow(const row_block *first, const int width, const int stride, const int kind)
{
    row_block b = *first;
    const gp_window *w = &b.pool->rows.window;
    const int64_t n_taps = w->kernel[0] * w->kernel[1];
    narrow_rows rows;
    int64_t to_next[GP_POOL_ROWS * GP_NARROW_TAPS];
    for (int64_t row = 0; row < b.n_rows; row++) {
        find_narrow_taps(&b, row, rows.taps + row * n_taps, to_next + row * n_taps);
        rows.above[row] = kind == POOL_SUM ? count_above(b.pool, b.od, b.oh + row) : 0;
    }
    for (int64_t c = 0; c < b.channels; c++) {
        if (kind == POOL_MAX_OF_NUMBERS && find_max_kind(&b) == POOL_MAX)
            pool_by_lines(&b, POOL_MAX);
        else if (n_taps == width) /* a square window: the loop over taps is straight code */
            pool_narrow_rows(&b, &rows, width, width, stride, kind);
        else
            pool_narrow_rows(&b, &rows, n_taps, width, stride, kind);
        for (int64_t i = 0; i < b.n_rows * n_taps; i++)
            rows.taps[i] += to_next[i];
        b.src += w->src_c;
        b.to += b.to_channel;
    }
}

#define GP_DEFINE_NARROW(width, stride, kind)                                                                          \
    static __attribute__((noinline)) void pool_narrow_##width##_##stride##_##kind(const row_block *b)                  \
    {                                                                                                                  \
        pool_narrow(b, width, stride, kind);                                                                           \
    }

GP_DEFINE_NARROW(2, 1, POOL_SUM)
GP_DEFINE_NARROW(2, 2, POOL_SUM)
GP_DEFINE_NARROW(3, 1, POOL_SUM)
GP_DEFINE_NARROW(3, 2, POOL_SUM)
GP_DEFINE_NARROW(5, 1, POOL_SUM)
GP_DEFINE_NARROW(2, 1, POOL_MAX_OF_NUMBERS)
GP_DEFINE_NARROW(2, 2, POOL_MAX_OF_NUMBERS)
GP_DEFINE_NARROW(3, 1, POOL_MAX_OF_NUMBERS)
GP_DEFINE_NARROW(3, 2, POOL_MAX_OF_NUMBERS)
GP_DEFINE_NARROW(5, 1, POOL_MAX_OF_NUMBERS)

/* What pools such windows, or NULL. */
static pool_block_fn *find_narrow(const row_block *b, int is_max)
{
    const gp_window *w = &b->pool->rows.window;
    if (w->src[2] != 1 || b->to_step != 1 || w->dilation[2] != 1 || w->stride[2] > 2 ||
        w->kernel[0] > GP_NARROW_TAPS || w->kernel[0] * w->kernel[1] > GP_NARROW_TAPS)
        return NULL;
    const int stride = (int)w->stride[2] - 1;
    if (w->kernel[2] == 2)
        return is_max ? (stride ? pool_narrow_2_2_POOL_MAX_OF_NUMBERS : pool_narrow_2_1_POOL_MAX_OF_NUMBERS)
                      : (stride ? pool_narrow_2_2_POOL_SUM : pool_narrow_2_1_POOL_SUM);
    if (w->kernel[2] == 3)
        return is_max ? (stride ? pool_narrow_3_2_POOL_MAX_OF_NUMBERS : pool_narrow_3_1_POOL_MAX_OF_NUMBERS)
                      : (stride ? pool_narrow_3_2_POOL_SUM : pool_narrow_3_1_POOL_SUM);
    if (w->kernel[2] == 5 && !stride)
        return is_max ? pool_narrow_5_1_POOL_MAX_OF_NUMBERS : pool_narrow_5_1_POOL_SUM;
    return NULL;
}

/* How far the windows of whole vectors of results reach along a line. */
static int64_t find_reach(const gp_window *w)
{
    const int64_t results = (w->out[2] + GP_VL - 1) / GP_VL * GP_VL;
    return results * w->stride[2] + (w->kernel[2] - 1) * w->dilation[2];
}

/* Lines, and the blank row, of which two vectors may be read from the last column on that windows reach. */
static int64_t count_line_elements(const gp_window *w)
{
    return (GP_POOL_ROWS + 1) * (find_reach(w) + GP_VL) + GP_VL;
}

/* `n_rows` rows of results from `row` on. Lines are a vector longer than windows reach, or than the source; what is
 * padding of theirs stays so from row to row. */
static void pool_planes(const gp_pool *p, const float *src, const gp_row *row, int64_t n_rows, const float *cells,
                        float *lines, int is_max)
{
    const gp_window *w = &p->rows.window;
    const int64_t begin = p->is_sparse ? 0 : w->pad[2], reach = p->is_sparse ? w->in[2] : find_reach(w);
    row_block b = {.pool = p, .depths = find_range(w, 0, row->od), .cells = cells, .od = row->od, .to_row = w->dst[1],
                   .to_step = w->channels_last ? row->ld : 1, .to_channel = w->channels_last ? 1 : row->ld,
                   .lines = lines, .n = gp_max(gp_min(w->in[2], reach - begin), 0), .length = reach + GP_VL,
                   .begin = begin, .blank = lines + GP_POOL_ROWS * (reach + GP_VL)};
    pool_block_fn *narrow = find_narrow(&b, is_max);
    for (int64_t r = 0; r < n_rows; r += GP_POOL_ROWS) {
        b.oh = row->oh + r;
        b.n_rows = gp_min(GP_POOL_ROWS, n_rows - r);
        b.channels = narrow ? row->channels : 1;
        for (int64_t c = 0; c < row->channels; c += b.channels) {
            b.src = src + row->n * w->src_n + (row->c + c) * w->src_c;
            b.to = row->tile + c * b.to_channel + r * b.to_row;
            if (narrow)
                narrow(&b);
            else
                pool_by_lines(&b, is_max ? find_max_kind(&b) : POOL_SUM);
        }
    }
}

/* Tasks of the kernels below; behind the tile lie the cells of the divisor, then lines. */
GP_INLINE void pool(const gp_pool *p, void *const *args, int64_t begin, int64_t end, void *scratch, const int nbytes,
                    const int is_max)
{
    const gp_window *w = &p->rows.window;
    const int in_pixels = nbytes == 1 || (w->channels_last && w->src_c == 1);
    float *cells = (float *)((char *)scratch + p->rows.room_offset), *lines = cells + w->out[2];
    for (int64_t o = 0; !is_max && o < w->out[2]; o++)
        cells[o] = (float)count_cells(p, 2, o);
    for (int64_t i = 0; !in_pixels && !p->is_sparse && i < count_line_elements(w); i++)
        lines[i] = start(is_max)[0];
    for (int64_t task = begin, n_rows; task < end; task += n_rows) {
        gp_row row = gp_row_begin(&p->rows, args[1], scratch, task);
        n_rows = in_pixels || p->rows.tile_in_scratch ? 1 : gp_min(end - task, w->out[1] - row.oh);
        if (in_pixels)
            pool_pixels(p, nbytes, args[0], &row, cells, is_max ? 0 : count_above(p, row.od, row.oh), is_max);
        else
            pool_planes(p, args[0], &row, n_rows, cells, lines, is_max);
        for (int64_t r = 0; r < n_rows && (p->rows.has_epilogue || p->rows.tile_in_scratch); r++) {
            row = gp_row_begin(&p->rows, args[1], scratch, task + r);
            gp_row_end(&p->rows, &row, (const gp_eltwise *)(p + 1), args + 1);
        }
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
    GP_NUMBER(GP_POOL_ROWS),
    GP_TABLE_END,
};
