/* Reductions of integers and f64, in their own type: sums, products and extremes. Tasks as in reduce.c. */
#include "norm/gp_fold.h"
#include "norm/gp_reduce.h"

/* Runs of fewer elements, one of them where columns are walked, are taken side by side with those of other results. */
#define GP_SHORT_RUN 16

#define GP_DEFINE_REDUCE(NAME, type, wide, least, largest)                                                             \
    GP_DEFINE_FOLD(NAME, ADD, type, wide)                                                                              \
    GP_DEFINE_FOLD(NAME, MUL, type, wide)                                                                              \
    GP_DEFINE_FOLD(NAME, MAX, type, wide)                                                                              \
    GP_DEFINE_FOLD(NAME, MIN, type, wide)                                                                              \
                                                                                                                       \
    static const struct {                                                                                              \
        type (*row)(const type *, int64_t, int64_t, type);                                                             \
        void (*columns)(const type *, int64_t, int64_t, type *);                                                       \
        type identity;                                                                                                 \
    } NAME##_folds[] = {                                                                                               \
        {NAME##_ADD_row, NAME##_ADD_columns, 0},                                                                       \
        {NAME##_MUL_row, NAME##_MUL_columns, 1},                                                                       \
        {NAME##_MAX_row, NAME##_MAX_columns, least},                                                                   \
        {NAME##_MIN_row, NAME##_MIN_columns, largest},                                                                 \
    };                                                                                                                 \
                                                                                                                       \
    GP_DEFINE_KERNEL(NAME##_reduce)                                                                                    \
    {                                                                                                                  \
        const reduce_params *p = params;                                                                               \
        const int fold = p->term == BEST ? (p->sign > 0 ? 2 : 3) : p->term == PRODUCT;                                 \
        const int64_t tiles = (p->width + p->tile - 1) / p->tile;                                                      \
        for (int64_t task = begin; task < end; task++) {                                                               \
            const int64_t first = task % tiles * p->tile, w = gp_min(p->tile, p->width - first);                       \
            int64_t at[GP_SPACE_OPERANDS];                                                                             \
            gp_offsets(&p->outer, task / tiles, at);                                                                   \
            const type *src = (const type *)args[0] + at[0] + first * p->width_stride[0];                              \
            type *dst = (type *)args[1] + at[1] + first * p->width_stride[1], totals[GP_MOST_COLUMNS];                 \
            for (int64_t j = 0; j < w; j++)                                                                            \
                totals[j] = NAME##_folds[fold].identity;                                                               \
            gp_walk walk = gp_start_walk(&p->points, 0);                                                               \
            for (int64_t k = 0; k < p->npoints; k++, gp_step_walk(&p->points, &walk)) {                                \
                const type *from = src + walk.offset;                                                                  \
                if (p->run < GP_SHORT_RUN)                                                                             \
                    for (int64_t i = 0; i < p->run; i++)                                                               \
                        NAME##_folds[fold].columns(from + i * p->run_stride, p->width_stride[0], w, totals);           \
                else                                                                                                   \
                    for (int64_t j = 0; j < w; j++)                                                                    \
                        totals[j] = NAME##_folds[fold].row(from + j * p->width_stride[0], p->run, p->run_stride,       \
                                                           totals[j]);                                                 \
            }                                                                                                          \
            for (int64_t j = 0; j < w; j++)                                                                            \
                dst[j * p->width_stride[1]] = totals[j];                                                               \
        }                                                                                                              \
    }

GP_WIDE_TYPES(GP_DEFINE_REDUCE)
GP_NARROW_TYPES(GP_DEFINE_REDUCE)

#define GP_REDUCE_ENTRY(NAME, type, wide, least, largest) GP_ENTRY(NAME##_reduce, reduce_params),

const gp_kernel_entry GP_KERNEL(reduce_wide_table)[] = {
    GP_WIDE_TYPES(GP_REDUCE_ENTRY)
    GP_NARROW_TYPES(GP_REDUCE_ENTRY)
    GP_TABLE_END,
};
