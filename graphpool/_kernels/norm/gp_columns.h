/* Columns that are walked together, row by row, where what is reduced has gaps. */
#ifndef GP_COLUMNS_H
#define GP_COLUMNS_H

#include "core/gp_vec.h"
#include "eltwise/gp_sink.h"

#define GP_COLUMNS 64      /* of a task: four cache lines */
#define GP_MOST_COLUMNS 512 /* of one whose rows have more, so that more lines in a row follow each other */
#define GP_COLUMN_ROWS 32  /* rows that are added up in f32 before they go to f64: 8 KiB of columns */

/* Where an operand of a space lies at one index after another; no division a step. */
typedef struct {
    int64_t at[GP_MAX_NDIM], offset;
} gp_walk;

/* At a linear index; the first operand's strides count. */
static inline __attribute__((unused)) gp_walk gp_start_walk(const gp_space *space, int64_t linear)
{
    gp_walk walk = {.offset = 0};
    for (int64_t axis = space->ndim - 1; axis >= 0 && linear; axis--) {
        walk.at[axis] = axis ? linear % space->dim[axis] : linear;
        linear = axis ? linear / space->dim[axis] : 0;
        walk.offset += walk.at[axis] * space->stride[0][axis];
    }
    return walk;
}

static inline __attribute__((unused)) void gp_step_walk(const gp_space *space, gp_walk *walk)
{
    for (int64_t axis = space->ndim - 1; axis >= 0; axis--) {
        walk->offset += space->stride[0][axis];
        if (++walk->at[axis] < space->dim[axis])
            return;
        walk->offset -= space->dim[axis] * space->stride[0][axis];
        walk->at[axis] = 0;
    }
}

/* Where the rows of the indices first, first + 1, ... begin, GP_COLUMN_ROWS at most; returns how many there are. */
static inline __attribute__((unused)) int64_t gp_find_rows(const gp_space *points, int64_t npoints, int64_t first,
                                                           const float *src, const float **rows)
{
    const int64_t n = gp_min(GP_COLUMN_ROWS, npoints - first), last = points->ndim - 1;
    const int64_t stride = last < 0 ? 0 : points->stride[0][last];
    gp_walk walk = gp_start_walk(points, first);
    for (int64_t i = 0, count; i < n; i += count, gp_step_walk(points, &walk)) {
        count = last < 0 ? n : gp_min(n - i, points->dim[last] - walk.at[last]);
        for (int64_t k = 0; k < count; k++)
            rows[i + k] = src + walk.offset + k * stride;
        walk.offset += (count - 1) * stride;
        walk.at[gp_max(last, 0)] += count - 1;
    }
    return n;
}

#endif
