/* How reductions lie in memory, whatever the type of their elements. */
#ifndef GP_REDUCE_H
#define GP_REDUCE_H

#include "norm/gp_columns.h"

/* What is accumulated, and what becomes of it. */
GP_ENUM(reduce_term, VALUE, ABS, SQUARE, BEST, PRODUCT);
GP_ENUM(reduce_finish, PLAIN, MEAN, ROOT);

GP_RECORD(reduce_params, {
    gp_space outer;                         /* results, but for those of a task's axis: src, dst */
    gp_space points;                        /* reduced axes, but for the run: src */
    int64_t npoints, run, run_stride;       /* run: innermost reduced axis; 1 where columns are walked */
    int64_t width, width_stride[2], tile;   /* axis of results: its size, strides in src and dst, results of a task */
    int64_t by_column, term, finish;
    int64_t has_program;
    double sign;                            /* of x in BEST: -1 makes the maximum a minimum */
});

#endif
