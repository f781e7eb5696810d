/* Columns that are walked together, row by row, where what is reduced has gaps. */
#ifndef GP_COLUMNS_H
#define GP_COLUMNS_H

#include "core/gp_vec.h"
#include "eltwise/gp_sink.h"

#define GP_COLUMNS 64      /* of a task: four cache lines */
#define GP_COLUMN_ROWS 32  /* rows that are added up in f32 before they go to f64: 8 KiB of columns */

/* Where the rows of the indices first, first + 1, ... begin, GP_COLUMN_ROWS at most; returns how many there are. */
static inline __attribute__((unused)) int64_t gp_find_rows(const gp_space *points, int64_t npoints, int64_t first,
                                                           const float *src, const float **rows)
{
    const int64_t n = gp_min(GP_COLUMN_ROWS, npoints - first);
    for (int64_t i = 0; i < n; i++) {
        int64_t at[GP_SPACE_OPERANDS];
        gp_offsets(points, first + i, at);
        rows[i] = src + at[0];
    }
    return n;
}

#endif
