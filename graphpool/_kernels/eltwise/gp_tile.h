/* What becomes of a tile of f32 results: the epilogue of the kernels that compute accumulators. */
#ifndef GP_TILE_H
#define GP_TILE_H

#include <string.h>

#include "eltwise/gp_eltwise.h"

/* Rows of at most so many results are brought together before a program runs on them, in room for so many. */
#define GP_TILE_NARROW 64
#define GP_TILE_ROOM 1024

/* Run `program` on a tile of rows x cols accumulators (row stride ld). Row r holds the elements
 * first + r * step .. first + r * step + cols - 1 of the program's iteration space. `args` begin at dst. */
static inline void gp_run_epilogue(const gp_eltwise *program, void *const *args, const float *tile, int64_t ld,
                                   int64_t rows, int64_t cols, int64_t first, int64_t step)
{
    if (ld == cols && step == cols) {
        gp_eltwise_run(program, args, tile, first, first + rows * cols);
        return;
    }
    if (step == cols && cols <= GP_TILE_NARROW) {
        float room[GP_TILE_ROOM];
        for (int64_t r = 0, n; r < rows; r += n) {
            n = rows - r < GP_TILE_ROOM / cols ? rows - r : GP_TILE_ROOM / cols;
            for (int64_t i = 0; i < n; i++)
                memcpy(room + i * cols, tile + (r + i) * ld, (size_t)cols * sizeof *room);
            gp_eltwise_run(program, args, room, first + r * cols, first + (r + n) * cols);
        }
        return;
    }
    for (int64_t r = 0; r < rows; ++r)
        gp_eltwise_run(program, args, tile + r * ld, first + r * step, first + r * step + cols);
}

#endif
