/* Elementwise programs on integers: the format of gp_eltwise.h with registers of s64, so that s32 and s64 are exact.
 *
 * Arithmetic wraps, as does a store into a narrower type.
 */
#include "gp_eltwise.h"

#include <string.h>

/* Registers take as many bytes as those of floats. */
#define GP_INT_BLOCK (GP_BLOCK / 2)

#define GP_WRAP(x, operator, y) (int64_t)((uint64_t)(x) operator(uint64_t)(y))

#define GP_FOR_EACH_OP(X)                                                                                              \
    X(ADD, GP_WRAP(x, +, y))                                                                                           \
    X(SUB, GP_WRAP(x, -, y))                                                                                           \
    X(MUL, GP_WRAP(x, *, y))                                                                                           \
    X(MAX, x > y ? x : y)                                                                                              \
    X(MIN, x < y ? x : y)                                                                                              \
    X(GE, x >= y)                                                                                                      \
    X(GT, x > y)                                                                                                       \
    X(LE, x <= y)                                                                                                      \
    X(LT, x < y)                                                                                                       \
    X(EQ, x == y)                                                                                                      \
    X(NE, x != y)

#define GP_CASE(NAME, expression)                                                                                      \
    case GP_OP_##NAME:                                                                                                 \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                           \
        {                                                                                                              \
            const int64_t x = a[i], y = b[i];                                                                          \
            dst[i] = (expression);                                                                                     \
        }                                                                                                              \
        break;

static void compute(const gp_instr *instr, int64_t (*r)[GP_INT_BLOCK], int64_t n)
{
    int64_t *dst = r[instr->dst];
    const int64_t *a = r[instr->a], *b = r[instr->b], *c = r[instr->c];
    switch (instr->op) {
        GP_FOR_EACH_OP(GP_CASE)
    case GP_OP_SELECT:
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) dst[i] = a[i] ? b[i] : c[i];
    }
}

#define GP_LOAD(DTYPE, type)                                                                                           \
    case DTYPE:                                                                                                        \
        for (int64_t i = 0; i < n; i++)                                                                                \
            to[i] = ((const type *)memory)[offset + i * stride];                                                       \
        break;

#define GP_STORE(DTYPE, type, value)                                                                                   \
    case DTYPE:                                                                                                        \
        for (int64_t i = 0; i < n; i++)                                                                                \
            ((type *)memory)[offset + i * stride] = (type)(value);                                                     \
        break;

static void load_run(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    int64_t *to = values;
    switch (dtype) {
        GP_LOAD(GP_S8, int8_t)
        GP_LOAD(GP_U8, uint8_t)
        GP_LOAD(GP_BOOL, uint8_t)
        GP_LOAD(GP_S32, int32_t)
        GP_LOAD(GP_S64, int64_t)
    }
}

static void store_run(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    const int64_t *from = values;
    switch (dtype) {
        GP_STORE(GP_S8, int8_t, from[i])
        GP_STORE(GP_U8, uint8_t, from[i])
        GP_STORE(GP_BOOL, uint8_t, from[i] != 0)
        GP_STORE(GP_S32, int32_t, from[i])
        GP_STORE(GP_S64, int64_t, from[i])
    }
}

static void run_block(const gp_eltwise *program, void *const *args, int64_t first, int64_t n)
{
    int64_t r[GP_ELTWISE_REGISTERS][GP_INT_BLOCK];
    const gp_view *views = gp_eltwise_views(program);
    const gp_instr *instr = gp_eltwise_instrs(program), *const end = instr + program->ninstrs;
    for (; instr < end; instr++) {
        if (instr->op == GP_OP_LOAD)
            gp_move_view(views + instr->a, args, (char *)r[instr->dst], sizeof(int64_t), first, n, load_run);
        else if (instr->op == GP_OP_STORE)
            gp_move_view(views + instr->dst, args, (char *)r[instr->a], sizeof(int64_t), first, n, store_run);
        else
            compute(instr, r, n);
    }
}

static void int_eltwise(const void *params, void *const *args, int64_t begin, int64_t end, void *scratch)
{
    (void)scratch;
    const gp_eltwise *program = params;
    const int64_t limit = end * GP_ELTWISE_TASK, last = limit < program->size ? limit : program->size;
    for (int64_t at = begin * GP_ELTWISE_TASK; at < last; at += GP_INT_BLOCK)
        run_block(program, args, at, last - at < GP_INT_BLOCK ? last - at : GP_INT_BLOCK);
}

const gp_kernel_entry GP_KERNEL(eltwise_int_table)[] = {
    {"int_eltwise", int_eltwise, sizeof(gp_eltwise)},
    {NULL, NULL, 0},
};
