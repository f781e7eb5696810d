/* Reductions of f32 over any set of axes.
 *
 * A task computes up to GP_MOST_COLUMNS neighbouring results. Where reduced elements are contiguous it takes them run by run, one
 * result after the other, or as many short runs as there are lanes; where results are, it walks all columns together, row by
 * row.
 */
#include "core/gp_lanes.h"
#include "norm/gp_reduce.h"

#define CHUNK 2048    /* elements of a run that are gathered at once */

/* Accumulators of a task. */
typedef struct {
    double sum[GP_MOST_COLUMNS];   /* of terms; the product in PRODUCT */
    float best[GP_MOST_COLUMNS];   /* maximum of sign * x; NaN once there was one */
} state;

static float row_best(const float *x, int64_t n, float sign)
{
    const gp_vf s = gp_splat(sign);
    gp_vf best = gp_splat(-INFINITY), nans = {0}; /* zeros, or the NaNs of a lane */
    for (int64_t i = 0; i < n; i += GP_VL) {
        const gp_vf v = n - i < GP_VL ? gp_load_part(x + i, n - i, sign * -INFINITY) : gp_load(x + i);
        best = gp_vmax(v * s, best);
        nans = gp_vselect(gp_vequal(v, v), nans, v);
    }
    return gp_lane_max(best) + gp_lane_sum(nans);
}

static double row_product(const float *x, int64_t n)
{
    double lanes[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int64_t k = 0; k < 8; k++)
            lanes[k] *= x[i + k];
    for (; i < n; i++)
        lanes[0] *= x[i];
    return ((lanes[0] * lanes[1]) * (lanes[2] * lanes[3])) * ((lanes[4] * lanes[5]) * (lanes[6] * lanes[7]));
}

static int is_better(float candidate, float best)
{
    return candidate > best || candidate != candidate;
}

/* Runs of n elements, CHUNK at most: element i of result j lies at src[j * step + i * stride]. */
typedef struct {
    const float *src;
    int64_t n, stride, step;
} runs;

/* Vectors of a run whose lanes are added up, or compared, together with those of other runs. */
#define SHORT_VECTORS 4

/* Of `count` runs of nv vectors, of which the last has n elements, the sums of the terms in lanes, or the maxima of
 * sign * x; these hold where `nans` stays what it was. GP_VL runs at most. */
GP_INLINE gp_vf reduce_short(const enum gp_term term, const int is_best, const int nv, const float *src, int64_t step,
                             int64_t n, int64_t count, float sign, gp_vf *nans)
{
    const gp_vf s = gp_splat(sign), identity = gp_splat(is_best ? -INFINITY : 0);
    gp_vf v[GP_VL];
#pragma GCC unroll 16
    for (int j = 0; j < GP_VL; j++) {
        const float *x = src + (j < count ? j : 0) * step; /* the first run again instead of those there are not */
        gp_vf total = identity;
#pragma GCC unroll 4
        for (int k = 0; k < nv; k++, x += GP_VL) {
            const int is_whole = k + 1 < nv || n == GP_VL;
            const gp_vf part = is_whole ? gp_load(x) : gp_load_part(x, n, is_best ? sign * -INFINITY : 0);
            total = is_best ? gp_vmax(part * s, total) : total + gp_vterm(term, part, (gp_vf){0});
            if (is_best)
                *nans = gp_vselect(gp_vequal(part, part), *nans, part);
        }
        v[j] = total;
    }
    return gp_across_lanes(is_best, v);
}

/* The same of runs first .. first + GP_VL - 1 of w, which are not empty. */
GP_INLINE void reduce_group(const enum gp_term term, const int is_best, const runs *r, int64_t first, int64_t w, float sign,
                            float *part, gp_vf *nans)
{
    const float *src = r->src + first * r->step;
    const int64_t count = gp_min(w - first, GP_VL), nv = (r->n + GP_VL - 1) / GP_VL, n = r->n - (nv - 1) * GP_VL;
#define GP_REDUCE(nv) reduce_short(term, is_best, nv, src, r->step, n, count, sign, nans)
    switch (nv) {
    case 1: gp_store(part, GP_REDUCE(1)); break;
    case 2: gp_store(part, GP_REDUCE(2)); break;
    case 3: gp_store(part, GP_REDUCE(3)); break;
    default: gp_store(part, GP_REDUCE(4)); break;
    }
#undef GP_REDUCE
}

/* Whether runs are short enough for `reduce_short`. */
static int are_short(const runs *r)
{
    return r->stride == 1 && r->n > 0 && r->n <= SHORT_VECTORS * GP_VL;
}

/* Whether f32 held all of w sums. */
GP_INLINE int are_sums_sound(enum gp_term term, const float *part, int64_t w)
{
    int sound = 1;
    for (int64_t j = 0; j < w; j++)
        sound &= (fabsf(part[j]) < 1e37f) & (term != GP_TERM_SQUARE || part[j] > 1e-30f);
    return sound;
}

GP_INLINE void add_sums(const enum gp_term term, const runs *r, int64_t w, state *s)
{
    float row[CHUNK], part[GP_MOST_COLUMNS];
    const int is_short = are_short(r);
    gp_vf nans;
    for (int64_t first = 0; is_short && first < w; first += GP_VL)
        reduce_group(term, 0, r, first, w, 1, part + first, &nans);
    if (is_short && are_sums_sound(term, part, w))
        for (int64_t j = 0; j < w; j++)
            s->sum[j] += part[j];
    else
        for (int64_t j = 0; j < w; j++)
            s->sum[j] += gp_row_sum(term, gp_gather(r->src + j * r->step, r->stride, r->n, row), r->n, 0);
}

static void add_best_runs(const runs *r, int64_t w, float sign, float *best)
{
    float row[CHUNK], part[GP_MOST_COLUMNS];
    const gp_vf zeros = {0};
    gp_vf nans = zeros;
    for (int64_t first = 0; are_short(r) && first < w; first += GP_VL)
        reduce_group(GP_TERM_VALUE, 1, r, first, w, sign, part + first, &nans);
    if (!are_short(r) || gp_lane_sum(nans) != 0)
        for (int64_t j = 0; j < w; j++)
            part[j] = row_best(gp_gather(r->src + j * r->step, r->stride, r->n, row), r->n, sign);
    for (int64_t j = 0; j < w; j++)
        best[j] = is_better(part[j], best[j]) ? part[j] : best[j];
}

/* Accumulate a run into each of w results. */
static void add_runs(enum reduce_term term, float sign, const runs *r, int64_t w, state *s)
{
    float row[CHUNK];
    switch (term) {
    case VALUE: add_sums(GP_TERM_VALUE, r, w, s); break;
    case ABS: add_sums(GP_TERM_ABS, r, w, s); break;
    case SQUARE: add_sums(GP_TERM_SQUARE, r, w, s); break;
    case PRODUCT:
        for (int64_t j = 0; j < w; j++)
            s->sum[j] *= row_product(gp_gather(r->src + j * r->step, r->stride, r->n, row), r->n);
        break;
    case BEST: add_best_runs(r, w, sign, s->best); break;
    }
}

static void scan_runs(const reduce_params *p, enum reduce_term term, const float *src, int64_t w, state *s)
{
    for (int64_t k = 0; k < p->npoints; k++) {
        int64_t at[GP_SPACE_OPERANDS];
        gp_offsets(&p->points, k, at);
        for (int64_t i = 0; i < p->run; i += CHUNK) {
            const float *from = src + at[0] + i * p->run_stride;
            const runs r = {from, gp_min(CHUNK, p->run - i), p->run_stride, p->width_stride[0]};
            add_runs(term, (float)p->sign, &r, w, s);
        }
    }
}

static double column_sum_f64(enum gp_term term, const float *const *rows, int64_t n, int64_t j)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += gp_block_sum_f64(term, rows[i] + j, 1, 0);
    return sum;
}

/* part[j] += the terms of `count` rows, read side by side: more of them than a processor fetches ahead would be slower. What
 * lies `ahead` of as many of `later` is fetched, as a processor does not see from one page what it will read of the next. */
GP_INLINE void add_rows(const enum gp_term term, const float *const *rows, const float *const *later, int64_t ahead,
                        const int count, int64_t w, float *part)
{
    for (int64_t j = 0; j < w; j += GP_VL) {
        gp_vf total = gp_load(part + j);
        GP_EACH(i, count) {
            __builtin_prefetch(later[i] + ahead + j);
            total += gp_vterm(term, gp_load_some(rows[i] + j, w - j), (gp_vf){0});
        }
        gp_store(part + j, total);
    }
}

/* Columns of which a few rows fill what is fetched at a time; fewer are mostly all that rows have. */
#define WIDE 128

/* The sums of the terms of n rows of w columns, in f32. */
GP_INLINE void sum_rows(enum gp_term term, const float *const *rows, int64_t n, int64_t w, float *part)
{
    const int64_t ahead = w > WIDE ? 0 : GP_COLUMN_ROWS * w;
    int64_t i = 0;
    memset(part, 0, (size_t)((w + GP_VL - 1) / GP_VL * GP_VL) * sizeof *part);
    for (; i + 4 <= n; i += 4)
        add_rows(term, rows + i, rows + i + (w > WIDE && i + 8 <= n ? 4 : 0), ahead, 4, w, part);
    switch (n - i) {
    case 3: add_rows(term, rows + i, rows + i, ahead, 3, w, part); break;
    case 2: add_rows(term, rows + i, rows + i, ahead, 2, w, part); break;
    case 1: add_rows(term, rows + i, rows + i, ahead, 1, w, part); break;
    }
}

/* Add the terms of n rows of w columns; where f32 does not hold the sum, f64 does. */
GP_INLINE void add_terms(enum gp_term term, const float *const *rows, int64_t n, int64_t w, double *sum)
{
    float part[GP_MOST_COLUMNS];
    sum_rows(term, rows, n, w, part);
    if (are_sums_sound(term, part, w))
        for (int64_t j = 0; j < w; j++)
            sum[j] += part[j];
    else
        for (int64_t j = 0; j < w; j++)
            sum[j] += column_sum_f64(term, rows, n, j);
}

/* Of rows of w columns, the best of sign * x in four vectors of columns from `first` on. */
GP_INLINE void best_strip(const float *const *rows, int64_t n, int64_t first, int64_t w, float sign, float *best,
                          const int is_whole)
{
    const gp_vf s = gp_splat(sign);
    gp_vf m[4], nans[4] = {{0}, {0}, {0}, {0}}; /* zeros, or the NaNs of a lane */
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
        m[v] = gp_load(best + first + v * GP_VL);
    for (int64_t i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const int64_t at = first + v * GP_VL, left = is_whole ? GP_VL : w - at;
            if (left > 0) {
                const gp_vf x = left < GP_VL ? gp_load_part(rows[i] + at, left, 0) : gp_load(rows[i] + at);
                m[v] = gp_vmax(x * s, m[v]);
                nans[v] = gp_vselect(gp_vequal(x, x), nans[v], x);
            }
        }
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
        gp_store(best + first + v * GP_VL, m[v] + nans[v]);
}

static void add_bests(const float *const *rows, int64_t n, int64_t w, float sign, float *best)
{
    int64_t j = 0;
    for (; j + 4 * GP_VL <= w; j += 4 * GP_VL)
        best_strip(rows, n, j, w, sign, best, 1);
    if (j < w)
        best_strip(rows, n, j, w, sign, best, 0);
}

static void add_products(const float *const *rows, int64_t n, int64_t w, double *product)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < w; j++)
            product[j] *= rows[i][j];
}

static void scan_columns(const reduce_params *p, enum reduce_term term, const float *src, int64_t w, state *s)
{
    for (int64_t first = 0; first < p->npoints; first += GP_COLUMN_ROWS) {
        const float *rows[GP_COLUMN_ROWS];
        const int64_t n = gp_find_rows(&p->points, p->npoints, first, src, rows);
        switch (term) {
        case VALUE: add_terms(GP_TERM_VALUE, rows, n, w, s->sum); break;
        case ABS: add_terms(GP_TERM_ABS, rows, n, w, s->sum); break;
        case SQUARE: add_terms(GP_TERM_SQUARE, rows, n, w, s->sum); break;
        case BEST: add_bests(rows, n, w, (float)p->sign, s->best); break;
        case PRODUCT: add_products(rows, n, w, s->sum); break;
        }
    }
}

static void reset(enum reduce_term term, int64_t w, state *s)
{
    for (int64_t j = 0; j < (w + GP_COLUMNS - 1) / GP_COLUMNS * GP_COLUMNS; j++) { /* vectors are whole */
        if (term == BEST)
            s->best[j] = -INFINITY;
        else
            s->sum[j] = term == PRODUCT;
    }
}

static void get_results(const reduce_params *p, const state *s, int64_t w, float *results)
{
    const double share = 1 / (double)(p->npoints * p->run);
    if (p->term == BEST)
        for (int64_t j = 0; j < w; j++)
            results[j] = (float)p->sign * s->best[j];
    else if (p->finish == MEAN)
        for (int64_t j = 0; j < w; j++)
            results[j] = (float)(s->sum[j] * share);
    else if (p->finish == ROOT)
        for (int64_t j = 0; j < w; j++)
            results[j] = (float)sqrt(s->sum[j]);
    else
        for (int64_t j = 0; j < w; j++)
            results[j] = (float)s->sum[j];
}

/* The results of columns whose rows are so few that f32 adds them all up; 0 where it does not hold a sum. What f64 would
 * do with the sums changes no bit. */
GP_INLINE int reduce_few_rows(const enum gp_term term, const reduce_params *p, const float *src, int64_t w, float *results)
{
    const float *rows[GP_COLUMN_ROWS];
    const double share = 1 / (double)p->npoints;
    sum_rows(term, rows, gp_find_rows(&p->points, p->npoints, 0, src, rows), w, results);
    if (!are_sums_sound(term, results, w))
        return 0;
    for (int64_t j = 0; p->finish == MEAN && j < w; j++)
        results[j] = (float)(results[j] * share);
    return 1;
}

static int find_few_rows(const reduce_params *p, const float *src, int64_t w, float *results)
{
    if (!p->by_column || p->npoints > GP_COLUMN_ROWS || p->finish == ROOT)
        return 0;
    switch ((enum reduce_term)p->term) {
    case VALUE: return reduce_few_rows(GP_TERM_VALUE, p, src, w, results);
    case ABS: return reduce_few_rows(GP_TERM_ABS, p, src, w, results);
    default: return 0;
    }
}

GP_DEFINE_KERNEL(f32_reduce)
{
    const reduce_params *p = params;
    const gp_sink sink = gp_make_sink(p + 1, p->has_program, args + 1);
    void (*scan)(const reduce_params *, enum reduce_term, const float *, int64_t, state *) =
        p->by_column ? scan_columns : scan_runs;
    const int64_t tiles = (p->width + p->tile - 1) / p->tile;
    for (int64_t task = begin; task < end; task++) {
        const int64_t first = task % tiles * p->tile, w = gp_min(p->tile, p->width - first);
        int64_t at[GP_SPACE_OPERANDS];
        gp_offsets(&p->outer, task / tiles, at);
        const float *src = (const float *)args[0] + at[0] + first * p->width_stride[0];
        float results[GP_MOST_COLUMNS];
        if (!find_few_rows(p, src, w, results)) {
            state s;
            reset(p->term, w, &s);
            scan(p, p->term, src, w, &s);
            get_results(p, &s, w, results);
        }
        gp_emit(&sink, results, w, at[1] + first * p->width_stride[1], p->width_stride[1]);
    }
}

const gp_kernel_entry GP_KERNEL(reduce_table)[] = {
    GP_ENTRY(f32_reduce, reduce_params),
    GP_INNER(gp_space),
    GP_INNER(reduce_term),
    GP_INNER(reduce_finish),
    GP_TABLE_END,
};
