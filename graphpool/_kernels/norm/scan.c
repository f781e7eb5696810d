/* Walks along one axis that keep order: position of the extreme, running sum and product. A task is up to GP_MOST_COLUMNS lines. */
#include "norm/gp_columns.h"
#include "norm/gp_fold.h"

GP_RECORD(scan_params, {
    gp_space outer;                    /* lines, but for those of the width: src, dst */
    int64_t axis, axis_stride[2];      /* src, dst */
    int64_t width, width_stride[2], tile; /* tile: lines of a task */
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
    const int64_t tiles = (p->width + p->tile - 1) / p->tile, first = task % tiles * p->tile;
    int64_t at[GP_SPACE_OPERANDS];
    gp_offsets(&p->outer, task / tiles, at);
    return (lines){gp_min(p->tile, p->width - first), at[0] + first * p->width_stride[0],
                   at[1] + first * p->width_stride[1]};
}

/* The place of the extreme, for elements of any type; a NaN is more extreme than all numbers. Lines side by side keep what
 * is the best so far, and its index; of one dense line the extreme is found first, then where it stands. */
#define GP_IS_BETTER(x, best, is_min, is_last)                                                                         \
    (((is_min) ? (x) < (best) : (x) > (best)) | ((is_last) & ((x) == (best))) |                                        \
     (((x) != (x)) & ((is_last) | ((best) == (best)))))

#define GP_IS_EXTREME(x, extreme) (((x) == (extreme)) | (((x) != (x)) & ((extreme) != (extreme))))

#define GP_ARG_EXTREME(NAME, type, wide, least, largest)                                                               \
    GP_DEFINE_FOLD(NAME, MAX, type, wide)                                                                              \
    GP_DEFINE_FOLD(NAME, MIN, type, wide)                                                                              \
                                                                                                                       \
    static inline __attribute__((always_inline)) void NAME##_update(                                                   \
        const type *restrict x, int64_t stride, int64_t w, int32_t i, const int is_min, const int is_last,             \
        type *restrict best, int32_t *restrict index)                                                                  \
    {                                                                                                                  \
        for (int64_t j = 0; j < w; j++) {                                                                              \
            const type next = x[j * stride];                                                                           \
            const int is_better = GP_IS_BETTER(next, best[j], is_min, is_last);                                        \
            best[j] = is_better ? next : best[j];                                                                      \
            index[j] = is_better ? i : index[j];                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static inline __attribute__((always_inline)) void NAME##_walk(const scan_params *p, const type *x, int64_t w,      \
                                                                  const int is_min, const int is_last, int32_t *index) \
    {                                                                                                                  \
        type best[GP_MOST_COLUMNS];                                                                                    \
        for (int64_t j = 0; j < w; j++) {                                                                              \
            best[j] = x[j * p->width_stride[0]];                                                                       \
            index[j] = 0;                                                                                              \
        }                                                                                                              \
        for (int64_t i = 1; i < p->axis; i++) {                                                                        \
            x += p->axis_stride[0];                                                                                    \
            if (p->width_stride[0] == 1)                                                                               \
                NAME##_update(x, 1, w, (int32_t)i, is_min, is_last, best, index);                                      \
            else                                                                                                       \
                NAME##_update(x, p->width_stride[0], w, (int32_t)i, is_min, is_last, best, index);                     \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static int64_t NAME##_find(const scan_params *p, const type *x)                                                    \
    {                                                                                                                  \
        enum { LANES = 128 / sizeof(type) };                                                                           \
        const type extreme = (p->is_min ? NAME##_MIN_row : NAME##_MAX_row)(x, p->axis, 1, x[0]);                       \
        int64_t begin = 0, end = p->axis, any = 0;                                                                     \
        while (end - begin > LANES && !any) {                                                                          \
            const type *block = p->is_last ? x + end - LANES : x + begin;                                              \
            for (int64_t k = 0; k < LANES; k++)                                                                        \
                any |= GP_IS_EXTREME(block[k], extreme);                                                               \
            begin += !any && !p->is_last ? LANES : 0;                                                                  \
            end -= !any && p->is_last ? LANES : 0;                                                                     \
        }                                                                                                              \
        if (p->is_last) {                                                                                              \
            while (end > begin + 1 && !GP_IS_EXTREME(x[end - 1], extreme))                                             \
                end--;                                                                                                 \
            return end - 1;                                                                                            \
        }                                                                                                              \
        while (begin < end - 1 && !GP_IS_EXTREME(x[begin], extreme))                                                   \
            begin++;                                                                                                   \
        return begin;                                                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    GP_DEFINE_KERNEL(NAME##_arg_extreme)                                                                               \
    {                                                                                                                  \
        const scan_params *p = params;                                                                                 \
        for (int64_t task = begin; task < end; task++) {                                                               \
            const lines t = get_lines(p, task);                                                                        \
            const type *x = (const type *)args[0] + t.src;                                                             \
            int64_t *dst = (int64_t *)args[1] + t.dst;                                                                 \
            int32_t index[GP_MOST_COLUMNS];                                                                            \
            const int is_long = p->axis_stride[0] == 1 && p->axis >= GP_COLUMNS;                                       \
            if (is_long)                                                                                               \
                for (int64_t j = 0; j < t.w; j++)                                                                      \
                    dst[j * p->width_stride[1]] = NAME##_find(p, x + j * p->width_stride[0]);                          \
            else if (p->is_min)                                                                                        \
                p->is_last ? NAME##_walk(p, x, t.w, 1, 1, index) : NAME##_walk(p, x, t.w, 1, 0, index);                \
            else                                                                                                       \
                p->is_last ? NAME##_walk(p, x, t.w, 0, 1, index) : NAME##_walk(p, x, t.w, 0, 0, index);                \
            for (int64_t j = 0; j < t.w && !is_long; j++)                                                              \
                dst[j * p->width_stride[1]] = index[j];                                                                \
        }                                                                                                              \
    }

GP_ARG_EXTREME(f32, float, float, -INFINITY, INFINITY)
GP_WIDE_TYPES(GP_ARG_EXTREME)

enum { AHEAD = 2 }; /* rows */

/* Fetches elements of lines that lie side by side, before a walk comes to them: a processor does not see from one page what it
 * will read of the next one. */
GP_INLINE void fetch_lines(const char *at, int64_t nbytes)
{
    for (int64_t i = 0; i < nbytes; i += 64)
        __builtin_prefetch(at + i);
}

/* Running sums and products: `wide` adds up elements of `type`. Sums of lines that lie side by side are vectors. */
#define GP_RUNNING(NAME, type, wide)                                                                                   \
    static inline __attribute__((always_inline)) void NAME##_walk_lines(                                               \
        const scan_params *p, const type *src, type *dst, int64_t w, int64_t src_width, int64_t dst_width,             \
        const int is_product, const int is_exclusive)                                                                  \
    {                                                                                                                  \
        wide total[GP_MOST_COLUMNS];                                                                                   \
        for (int64_t j = 0; j < w; j++)                                                                                \
            total[j] = (wide)is_product;                                                                               \
        for (int64_t step = 0; step < p->axis; step++) {                                                               \
            const int64_t i = p->is_reverse ? p->axis - 1 - step : step;                                               \
            const type *x = src + i * p->axis_stride[0];                                                               \
            type *y = dst + i * p->axis_stride[1];                                                                     \
            const int64_t ahead = gp_min(AHEAD, p->axis - 1 - step) * (p->is_reverse ? -1 : 1);                        \
            if (src_width == 1 && dst_width == 1) {                                                                    \
                fetch_lines((const char *)(x + ahead * p->axis_stride[0]), w * (int64_t)sizeof *x);                    \
                fetch_lines((const char *)(y + ahead * p->axis_stride[1]), w * (int64_t)sizeof *y);                    \
            }                                                                                                          \
            _Pragma("GCC ivdep") for (int64_t j = 0; j < w; j++)                                                       \
            {                                                                                                          \
                const wide before = total[j], element = (wide)x[j * src_width];                                        \
                total[j] = is_product ? before * element : before + element;                                           \
                y[j * dst_width] = (type)(is_exclusive ? before : total[j]);                                           \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    /* Four at a time, whose sums stay in registers. */                                                                \
    static void NAME##_sum_lines(const scan_params *p, const type *src, type *dst, int64_t w)                          \
    {                                                                                                                  \
        const int64_t from = p->width_stride[0], to = p->width_stride[1];                                              \
        int64_t j = 0;                                                                                                 \
        for (; j + 4 <= w; j += 4)                                                                                     \
            NAME##_walk_lines(p, src + j * from, dst + j * to, 4, from, to, 0, 0);                                     \
        for (; j < w; j++)                                                                                             \
            NAME##_walk_lines(p, src + j * from, dst + j * to, 1, from, to, 0, 0);                                     \
    }                                                                                                                  \
    GP_DEFINE_KERNEL(NAME##_running)                                                                                   \
    {                                                                                                                  \
        const scan_params *p = params;                                                                                 \
        const int is_plain = !p->is_product && !p->is_exclusive && p->width_stride[0] == 1 && p->width_stride[1] == 1; \
        for (int64_t task = begin; task < end; task++) {                                                               \
            const lines t = get_lines(p, task);                                                                        \
            const type *src = (const type *)args[0] + t.src;                                                           \
            type *dst = (type *)args[1] + t.dst;                                                                       \
            if (is_plain)                                                                                              \
                NAME##_walk_lines(p, src, dst, t.w, 1, 1, 0, 0);                                                       \
            else if (p->is_product || p->is_exclusive)                                                                 \
                NAME##_walk_lines(p, src, dst, t.w, p->width_stride[0], p->width_stride[1], (int)p->is_product,        \
                                  (int)p->is_exclusive);                                                               \
            else                                                                                                       \
                NAME##_sum_lines(p, src, dst, t.w);                                                                    \
        }                                                                                                              \
    }

GP_RUNNING(f32, float, double)
GP_RUNNING(f64, double, double)
GP_RUNNING(s32, int32_t, uint32_t)
GP_RUNNING(s64, int64_t, uint64_t)

#define GP_ARG_ENTRY(NAME, type, wide, least, largest) GP_ENTRY(NAME##_arg_extreme, scan_params),

const gp_kernel_entry GP_KERNEL(scan_table)[] = {
    GP_ENTRY(f32_arg_extreme, scan_params),
    GP_WIDE_TYPES(GP_ARG_ENTRY)
    GP_ENTRY(f32_running, scan_params),
    GP_ENTRY(f64_running, scan_params),
    GP_ENTRY(s32_running, scan_params),
    GP_ENTRY(s64_running, scan_params),
    GP_TABLE_END,
};
