/* Where kernels that work row by row read and write: index spaces, gathers, and the sink of results. */
#ifndef GP_SINK_H
#define GP_SINK_H

#include "eltwise/gp_eltwise.h"

#include <string.h>

/* Operands that may have strides in one space. */
#define GP_SPACE_OPERANDS 4

/* A space of indices, outermost axis first, numbered in row-major order, and how each operand lies in it.
 * Described in graphpool._kernels.core.spaces.
 */
GP_RECORD(gp_space, {
    int64_t ndim;
    int64_t dim[GP_MAX_NDIM];
    int64_t stride[GP_SPACE_OPERANDS][GP_MAX_NDIM];  /* elements */
});

/* Offsets of all operands at a linear index. */
static inline __attribute__((unused)) void gp_offsets(const gp_space *space, int64_t linear, int64_t *offsets)
{
    for (int k = 0; k < GP_SPACE_OPERANDS; k++)
        offsets[k] = 0;
    for (int64_t axis = space->ndim - 1; axis >= 0 && linear; axis--) {
        const int64_t at = axis ? linear % space->dim[axis] : linear;  /* divisions are dear: one axis takes none */
        linear = axis ? linear / space->dim[axis] : 0;
        for (int k = 0; k < GP_SPACE_OPERANDS; k++)
            offsets[k] += at * space->stride[k][axis];
    }
}

/* The n elements at x, x + stride, ... as a contiguous row: x itself where it is one, else copied to `row`. */
static inline __attribute__((unused)) const float *gp_gather(const float *x, int64_t stride, int64_t n, float *row)
{
    if (stride == 1)
        return x;
    for (int64_t i = 0; i < n; i++)
        row[i] = x[i * stride];
    return row;
}

/* The destination of results: f32 memory, or an elementwise program whose linear index replaces the offset. */
typedef struct {
    float *dst;                 /* NULL with a program */
    const gp_eltwise *program;  /* NULL without */
    void *const *args;          /* the program's arguments, dst first */
} gp_sink;

static inline __attribute__((unused)) gp_sink gp_make_sink(const void *tail, int64_t has_program, void *const *args)
{
    return (gp_sink){has_program ? NULL : args[0], has_program ? tail : NULL, args};
}

/* Where to compute n results meant for `offset`: in place where the sink allows it, else in `row`. */
static inline __attribute__((unused)) float *gp_sink_row(const gp_sink *sink, int64_t offset, int64_t step, float *row)
{
    return sink->dst && step == 1 ? sink->dst + offset : row;
}

/* Hand over n results for the offsets offset, offset + step, ... */
static inline __attribute__((unused)) void gp_emit(
    const gp_sink *sink, const float *values, int64_t n, int64_t offset, int64_t step)
{
    if (sink->program && step == 1) {
        gp_eltwise_run(sink->program, sink->args, values, offset, offset + n);
    } else if (sink->program) {
        for (int64_t i = 0; i < n; i++)
            gp_eltwise_run(sink->program, sink->args, values + i, offset + i * step, offset + i * step + 1);
    } else if (step != 1) {
        for (int64_t i = 0; i < n; i++)
            sink->dst[offset + i * step] = values[i];
    } else if (values != sink->dst + offset) {
        memcpy(sink->dst + offset, values, n * sizeof *values);
    }
}

#endif
