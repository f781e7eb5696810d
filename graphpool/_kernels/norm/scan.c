/* Walks along one axis that keep order: position of the extreme, running sum and product. A task is up to 64 lines. */
#include "norm/gp_columns.h"

GP_RECORD(scan_params, {
    gp_space outer;                    /* lines, but for those of the width: src, dst */
    int64_t axis, axis_stride[2];      /* src, dst */
    int64_t width, width_stride[2];
    int64_t is_last, is_min;           /* arg: the last of equals; the minimum */
    int64_t is_exclusive, is_reverse;  /* running: without the element itself; from the end */
    int64_t is_product;                /* running: else a sum */
});

/* One task: w lines at src and dst. */
typedef struct {
    int64_t w, src, dst;
} lines;

static lines get_lines(const scan_params *p, int64_t task)
{
    const int64_t tiles = (p->width + GP_COLUMNS - 1) / GP_COLUMNS, first = task % tiles * GP_COLUMNS;
    int64_t at[GP_SPACE_OPERANDS];
    gp_offsets(&p->outer, task / tiles, at);
    return (lines){gp_min(GP_COLUMNS, p->width - first), at[0] + first * p->width_stride[0],
                   at[1] + first * p->width_stride[1]};
}

static void load_line(const float *x, int64_t stride, int64_t w, float sign, float *line)
{
    if (stride == 1)
        for (int64_t j = 0; j < w; j++)
            line[j] = sign * x[j];
    else
        for (int64_t j = 0; j < w; j++)
            line[j] = sign * x[j * stride];
}

/* Keep the first (or last) largest value and its index; any NaN is larger than all numbers. */
static void update_first(const float *x, int64_t w, int32_t i, float *best, int32_t *index)
{
    for (int64_t j = 0; j < w; j++) {
        const int better = (x[j] > best[j]) | ((x[j] != x[j]) & (best[j] == best[j]));
        best[j] = better ? x[j] : best[j];
        index[j] = better ? i : index[j];
    }
}

static void update_last(const float *x, int64_t w, int32_t i, float *best, int32_t *index)
{
    for (int64_t j = 0; j < w; j++) {
        const int better = (x[j] >= best[j]) | (x[j] != x[j]);
        best[j] = better ? x[j] : best[j];
        index[j] = better ? i : index[j];
    }
}

/* Whether elements are the extreme: NaN if it is one, else equal to it. */
GP_INLINE gp_vmask are_extreme(gp_vf v, gp_vf extreme, int is_nan)
{
    return is_nan ? gp_vunordered(v, v) : gp_vequal(v, extreme);
}

/* The vector of a line that begins at `at`, of m elements; what lies behind them is an extreme only where all are. */
GP_INLINE gp_vf load_of_line(const float *line, int64_t at, int64_t m, float none)
{
    return m < GP_VL ? gp_load_part(line + at, m, none) : gp_load(line + at);
}

/* The place of the extreme in one dense line: what it is, then where it stands first, or last. */
static int64_t find_in_line(const scan_params *p, const float *line)
{
    const float sign = p->is_min ? -1 : 1, none = sign * -INFINITY;
    const int64_t n = p->axis, last = (n - 1) / GP_VL * GP_VL;
    gp_vf best = gp_splat(-INFINITY), nans = {0};
    for (int64_t at = 0; at <= last; at += GP_VL) {
        const gp_vf v = load_of_line(line, at, n - at, none);
        best = gp_vmax(v * sign, best);
        nans = gp_vselect(gp_vequal(v, v), nans, v);
    }
    const int is_nan = gp_is_any(gp_vunordered(nans, nans));
    const float extreme = sign * gp_lane_max(best);
    for (int64_t k = 0; k <= last; k += GP_VL) {
        const int64_t at = p->is_last ? last - k : k, m = gp_min(GP_VL, n - at);
        if (!gp_is_any(are_extreme(load_of_line(line, at, m, none), gp_splat(extreme), is_nan)))
            continue;
        for (int64_t j = 0; j < m; j++) {
            const int64_t i = at + (p->is_last ? m - 1 - j : j);
            if (is_nan ? line[i] != line[i] : line[i] == extreme)
                return i;
        }
    }
    return 0; /* not reached: the extreme is one of them */
}

GP_DEFINE_KERNEL(f32_arg_extreme)
{
    const scan_params *p = params;
    for (int64_t task = begin; task < end; task++) {
        const lines t = get_lines(p, task);
        float best[GP_COLUMNS], x[GP_COLUMNS];
        int32_t index[GP_COLUMNS] = {0};
        if (p->axis_stride[0] == 1 && p->axis >= GP_COLUMNS) {
            for (int64_t j = 0; j < t.w; j++)
                ((int64_t *)args[1])[t.dst + j * p->width_stride[1]] =
                    find_in_line(p, (const float *)args[0] + t.src + j * p->width_stride[0]);
            continue;
        }
        for (int64_t j = 0; j < GP_COLUMNS; j++)
            best[j] = -INFINITY;
        for (int64_t i = 0; i < p->axis; i++) {
            const float *from = (const float *)args[0] + t.src + i * p->axis_stride[0];
            load_line(from, p->width_stride[0], t.w, p->is_min ? -1 : 1, x);
            (p->is_last ? update_last : update_first)(x, t.w, (int32_t)i, best, index);
        }
        for (int64_t j = 0; j < t.w; j++)
            ((int64_t *)args[1])[t.dst + j * p->width_stride[1]] = index[j];
    }
}

/* Running sums and products: `wide` adds up elements of `type`. */
#define GP_RUNNING(NAME, type, wide)                                                                                   \
    GP_DEFINE_KERNEL(NAME##_running)                                                                                   \
    {                                                                                                                  \
        const scan_params *p = params;                                                                                 \
        for (int64_t task = begin; task < end; task++) {                                                               \
            const lines t = get_lines(p, task);                                                                        \
            wide total[GP_COLUMNS];                                                                                    \
            for (int64_t j = 0; j < GP_COLUMNS; j++)                                                                   \
                total[j] = (wide)p->is_product;                                                                        \
            for (int64_t step = 0; step < p->axis; step++) {                                                           \
                const int64_t i = p->is_reverse ? p->axis - 1 - step : step;                                           \
                const type *x = (const type *)args[0] + t.src + i * p->axis_stride[0];                                 \
                type *y = (type *)args[1] + t.dst + i * p->axis_stride[1];                                             \
                for (int64_t j = 0; j < t.w; j++) {                                                                    \
                    const wide before = total[j], element = (wide)x[j * p->width_stride[0]];                           \
                    total[j] = p->is_product ? before * element : before + element;                                    \
                    y[j * p->width_stride[1]] = (type)(p->is_exclusive ? before : total[j]);                           \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

GP_RUNNING(f32, float, double)
GP_RUNNING(f64, double, double)
GP_RUNNING(s64, int64_t, uint64_t)

const gp_kernel_entry GP_KERNEL(scan_table)[] = {
    GP_ENTRY(f32_arg_extreme, scan_params),
    GP_ENTRY(f32_running, scan_params),
    GP_ENTRY(f64_running, scan_params),
    GP_ENTRY(s64_running, scan_params),
    GP_TABLE_END,
};
