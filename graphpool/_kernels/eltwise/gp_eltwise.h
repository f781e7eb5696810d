/* Elementwise programs: chains of instructions on registers that hold a block of floats in L1.
 *
 * A program runs alone (kernel "f32_eltwise": one read and one write of memory whatever its length) or as the epilogue of
 * another kernel, which keeps the block behind its own parameters and calls gp_eltwise_run on every run of results.
 *
 * The iteration space is the row-major index space of one shape, numbered linearly 0 .. size - 1. Every access to
 * memory goes through a view, which keeps only the axes that its own strides cannot merge: a contiguous tensor is one
 * axis, a bias in NCHW three. Computation is in f32; loads and stores convert. Where that is too narrow the kernels
 * "s64_eltwise", "u64_eltwise" and "f64_eltwise" run the same format on wider registers, "s32_eltwise" and "u8_eltwise"
 * on integers that are narrow (only by themselves, and a part of the instructions).
 *
 * The block is position independent and needs an alignment of 8 bytes:
 *     gp_eltwise | gp_view[nviews] | gp_instr[ninstrs]
 */
#ifndef GP_ELTWISE_H
#define GP_ELTWISE_H

#include "core/gp_kernel.h"

/* Bytes of all registers of a program together: half of the smallest L1 data cache in use. */
#define GP_ELTWISE_ROOM 16384
#define GP_ELTWISE_REGISTERS 16

/* Most elements of a register: the fewer registers a program needs, the longer are they, down to 256 floats. */
#define GP_BLOCK 4096

/* Elements of a task of the kernel "f32_eltwise"; even, so that no two tasks write into one byte of a 4-bit tensor. */
#define GP_ELTWISE_TASK 16384

GP_ENUM(gp_eltwise_op,
    /* memory and constants */
    GP_OP_LOAD, GP_OP_STORE, GP_OP_ACC, GP_OP_CONST,
    /* dst = f(a; alpha, beta) */
    GP_OP_ABS, GP_OP_EXP, GP_OP_HARD_SWISH, GP_OP_LOG, GP_OP_MISH, GP_OP_RECIPROCAL, GP_OP_RELU, GP_OP_ROUND,
    GP_OP_SIGMOID, GP_OP_SQRT, GP_OP_SQUARE, GP_OP_TANH, GP_OP_CLAMP, GP_OP_ELU, GP_OP_LEAKY_RELU, GP_OP_GELU_ERF,
    GP_OP_GELU_TANH, GP_OP_HARD_SIGMOID, GP_OP_SOFTPLUS, GP_OP_POW_SCALAR, GP_OP_ERF, GP_OP_NEG, GP_OP_FLOOR,
    GP_OP_CEIL, GP_OP_RSQRT, GP_OP_SIN, GP_OP_COS, GP_OP_SIGN, GP_OP_NOT, GP_OP_TRUNC, GP_OP_TAN, GP_OP_ASIN,
    GP_OP_ACOS, GP_OP_ATAN, GP_OP_SINH, GP_OP_COSH, GP_OP_ASINH, GP_OP_ACOSH, GP_OP_ATANH, GP_OP_IS_NAN, GP_OP_IS_INF,
    GP_OP_NARROW, GP_OP_QUANTIZE, GP_OP_DEQUANTIZE, GP_OP_BIT_NOT,
    /* dst = f(a, b) */
    GP_OP_ADD, GP_OP_SUB, GP_OP_MUL, GP_OP_DIV, GP_OP_MAX, GP_OP_MIN, GP_OP_SQUARED_DIFFERENCE, GP_OP_POW,
    GP_OP_PRELU, GP_OP_GE, GP_OP_GT, GP_OP_LE, GP_OP_LT, GP_OP_EQ, GP_OP_NE, GP_OP_AND, GP_OP_OR, GP_OP_XOR,
    GP_OP_MOD, GP_OP_FMOD, GP_OP_BIT_AND, GP_OP_BIT_OR, GP_OP_BIT_XOR, GP_OP_SHIFT_LEFT, GP_OP_SHIFT_RIGHT,
    /* dst = f(a, b, c) */
    GP_OP_SELECT, GP_OP_QUANTIZE_BY, GP_OP_DEQUANTIZE_BY, GP_OP_FMA
);

/* The operations that are one expression whatever the type of their operands x, y and z, and of alpha and beta, which are
 * f32: X(NAME, expression). NaN passes through MAX and MIN. */
#define GP_OPS_OF_ALL_TYPES(X)                                                                                         \
    GP_TESTS(X)                                                                                                        \
    X(MAX, x > y || x != x ? x : y)                                                                                    \
    X(MIN, x < y || x != x ? x : y)                                                                                    \
    X(CONST, alpha)                                                                                                    \
    X(SELECT, x != 0 ? y : z)

/* Those of them that give truth values. */
#define GP_TESTS(X)                                                                                                    \
    X(GE, x >= y)                                                                                                      \
    X(GT, x > y)                                                                                                       \
    X(LE, x <= y)                                                                                                      \
    X(LT, x < y)                                                                                                       \
    X(EQ, x == y)                                                                                                      \
    X(NE, x != y)                                                                                                      \
    X(AND, (x != 0) & (y != 0))                                                                                        \
    X(OR, (x != 0) | (y != 0))                                                                                         \
    X(XOR, (x != 0) ^ (y != 0))                                                                                        \
    X(NOT, x == 0)

/* The same of f32 and f64. */
#define GP_OPS_OF_FLOATS(X)                                                                                            \
    X(ADD, x + y)                                                                                                      \
    X(SUB, x - y)                                                                                                      \
    X(MUL, x *y)                                                                                                       \
    X(DIV, x / y)                                                                                                      \
    X(NEG, -x)                                                                                                         \
    X(SQUARE, x *x)                                                                                                    \
    X(RECIPROCAL, 1 / x)                                                                                               \
    X(SIGN, x > 0 ? 1 : (x < 0 ? -1 : x + 0))                                                                          \
    X(IS_NAN, x != x)                                                                                                  \
    X(IS_INF, (alpha != 0 && x == INFINITY) | (beta != 0 && x == -INFINITY))

/* a, b, c and dst are registers, but for LOAD (a is a view) and STORE (dst is a view, a the register). Three promises:
 * reads_memory   the values of this LOAD or ACC are last read before memory changes, by a STORE
 * writes_memory  the values of this instruction are read by the next one only, a STORE
 * is_kept        no other instruction writes dst: what a LOAD finds again in the next block, or a CONST, may stay there */
GP_RECORD(gp_instr, {
    int32_t op, dst, a, b, c;
    int32_t reads_memory, writes_memory, is_kept;
    float alpha, beta;
});

/* How the iteration space lies in an argument: element (linear index) -> offset + sum(coordinate * stride). */
GP_RECORD(gp_view, {
    int32_t arg, dtype;
    int64_t offset;  /* elements */
    int64_t ndim;    /* axes in use, at least 1 */
    int64_t dim[GP_MAX_NDIM], stride[GP_MAX_NDIM];  /* innermost first; elements; stride 0 broadcasts */
});

GP_RECORD(gp_eltwise, {
    int64_t size;  /* elements of the iteration space */
    int64_t nviews, ninstrs;
    int64_t nregisters;  /* that it uses */
    int64_t nbytes;      /* of the whole block */
});

static inline const gp_view *gp_eltwise_views(const gp_eltwise *program)
{
    return (const gp_view *)(program + 1);
}

static inline const gp_instr *gp_eltwise_instrs(const gp_eltwise *program)
{
    return (const gp_instr *)(gp_eltwise_views(program) + program->nviews);
}

/* Where a linear index lies in a view: coordinates, innermost first, and offset in elements. */
typedef struct {
    int64_t at[GP_MAX_NDIM];
    int64_t offset;
} gp_position;

static inline void gp_locate(const gp_view *view, int64_t linear, gp_position *p)
{
    p->offset = view->offset;
    for (int64_t k = 0; k < view->ndim; k++) {
        const int is_last = k + 1 == view->ndim; /* saves the only division of a contiguous view */
        p->at[k] = is_last ? linear : linear % view->dim[k];
        linear = is_last ? 0 : linear / view->dim[k];
        p->offset += p->at[k] * view->stride[k];
    }
}

/* Move on by n elements, at most to the end of the current innermost row. */
static inline void gp_advance(const gp_view *view, int64_t n, gp_position *p)
{
    p->at[0] += n;
    p->offset += n * view->stride[0];
    for (int64_t k = 0; k + 1 < view->ndim && p->at[k] == view->dim[k]; k++) {
        p->at[k] = 0;
        p->at[k + 1]++;
        p->offset += view->stride[k + 1] - view->dim[k] * view->stride[k];
    }
}

/* The offset from which n elements of a view lie one behind the other, or -1. */
static inline int64_t gp_find_run(const gp_view *view, int64_t first, int64_t n)
{
    gp_position p;
    gp_locate(view, first, &p);
    return view->stride[0] != 1 || view->dim[0] - p.at[0] < n ? -1 : p.offset;
}

/* Moves n values between registers and the memory of an argument, at offset, offset + stride, ... elements. */
typedef void gp_run_fn(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n);

/* Calls `move` on every innermost row of the elements [first, first + n), whose values take `value_nbytes` each. */
static inline void gp_move_view(const gp_view *view, void *const *args, char *values, int64_t value_nbytes,
                                int64_t first, int64_t n, gp_run_fn *move)
{
    gp_position p;
    gp_locate(view, first, &p);
    for (int64_t i = 0; i < n;) {
        const int64_t left = view->dim[0] - p.at[0], run = left < n - i ? left : n - i;
        move(view->dtype, values + i * value_nbytes, args[view->arg], p.offset, view->stride[0], run);
        gp_advance(view, run, &p);
        i += run;
    }
}

/* Compute the elements [first, last) of the iteration space.
 *
 * acc[i] is the accumulator of element first + i, which ACC reads; NULL where the program has no ACC. It may be the
 * very memory that a STORE in f32 writes, element on element. A call costs about 20 ns beyond its elements: pass whole
 * runs.
 */
#define gp_eltwise_run GP_OF(eltwise_eltwise, eltwise_run)
void gp_eltwise_run(const gp_eltwise *program, void *const *args, const float *acc, int64_t first, int64_t last);

#endif
