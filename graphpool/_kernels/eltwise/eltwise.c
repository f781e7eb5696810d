/* The interpreter of elementwise programs (gp_eltwise.h). */
#include "eltwise/gp_eltwise.h"

#include "core/gp_convert.h"
#include "core/gp_vmath.h"

/* Instructions run over a multiple of GP_LANES elements, so that their loops have no remainders: a result does not
 * depend on where it lies in a block, and short blocks (a row of a tile) are as fast as long ones. Loads fill up with
 * zeros to keep what lies behind the end defined. */
#define GP_LANES 16

typedef void instr_fn(const gp_instr *instr, float *dst, const float *a, const float *b, const float *c, int64_t n);

/* One loop: x, y, z are the operands; dst may be one of them, element on element, hence the ivdep. */
#define GP_DEFINE(NAME, expression)                                                                                    \
    static void op_##NAME(const gp_instr *instr, float *dst, const float *a, const float *b, const float *c, int64_t n) \
    {                                                                                                                  \
        const float alpha = instr->alpha, beta = instr->beta;                                                          \
        (void)alpha, (void)beta;                                                                                       \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < (n & -GP_LANES); i++)                                             \
        {                                                                                                              \
            const float x = a[i], y = b[i], z = c[i];                                                                  \
            (void)x, (void)y, (void)z;                                                                                 \
            dst[i] = (expression);                                                                                     \
        }                                                                                                              \
    }

/* POW_SCALAR, SIN, COS and NARROW are written out below. NaN passes through RELU, CLAMP, MAX and MIN. */
#define GP_FOR_EACH_OP(X)                                                                                              \
    GP_OPS_OF_ALL_TYPES(X)                                                                                             \
    GP_OPS_OF_FLOATS(X)                                                                                                \
    X(CONST, alpha)                                                                                                    \
    X(ABS, fabsf(x))                                                                                                   \
    X(RELU, x < 0 ? 0.0f : x)                                                                                          \
    X(ROUND, rintf(x))                                                                                                 \
    X(SQRT, sqrtf(x))                                                                                                  \
    X(LEAKY_RELU, x < 0 ? alpha * x : x)                                                                               \
    X(FLOOR, floorf(x))                                                                                                \
    X(CEIL, ceilf(x))                                                                                                  \
    X(RSQRT, 1.0f / sqrtf(x))                                                                                          \
    X(TRUNC, truncf(x))                                                                                                \
    X(TAN, tanf(x))                                                                                                    \
    X(ASIN, asinf(x))                                                                                                  \
    X(ACOS, acosf(x))                                                                                                  \
    X(ATAN, atanf(x))                                                                                                  \
    X(SINH, sinhf(x))                                                                                                  \
    X(COSH, coshf(x))                                                                                                  \
    X(ASINH, asinhf(x))                                                                                                \
    X(ACOSH, acoshf(x))                                                                                                \
    X(ATANH, atanhf(x))                                                                                                \
    X(MOD, (float)gp_modulo(x, y))                                                                                     \
    X(FMOD, fmodf(x, y))                                                                                               \
    X(SQUARED_DIFFERENCE, (x - y) * (x - y))                                                                           \
    X(POW, gp_pow(x, y))                                                                                               \
    X(PRELU, x > 0 ? x : x * y)                                                                                        \
    X(SELECT, x != 0 ? y : z)                                                                                          \
    X(FMA, GP_FMA(x, y, z))

GP_FOR_EACH_OP(GP_DEFINE)

/* The same over vectors, for what takes more than an operation or two. */
#define GP_DEFINE_VECTORS(NAME, expression)                                                                            \
    static void op_##NAME(const gp_instr *instr, float *dst, const float *a, const float *b, const float *c, int64_t n)\
    {                                                                                                                  \
        const gp_vf alpha = gp_splat(instr->alpha), beta = gp_splat(instr->beta), zero = {0};                          \
        (void)b, (void)c, (void)alpha, (void)beta, (void)zero;                                                         \
        for (int64_t i = 0; i < (n & -GP_LANES); i += GP_VL) {                                                         \
            const gp_vf x = gp_load(a + i);                                                                            \
            gp_store(dst + i, expression);                                                                             \
        }                                                                                                              \
    }

#define GP_FOR_EACH_VECTOR_OP(X)                                                                                       \
    X(EXP, gp_exp(x))                                                                                                  \
    X(HARD_SWISH, x *(gp_vclamp(x + 3.0f, zero, gp_splat(6.0f)) * (1.0f / 6.0f)))                                      \
    X(LOG, gp_log(x))                                                                                                  \
    X(MISH, gp_mish(x))                                                                                                \
    X(SIGMOID, gp_sigmoid(x))                                                                                          \
    X(TANH, gp_tanh(x))                                                                                                \
    X(CLAMP, gp_vclamp(x, alpha, beta))                                                                                \
    X(ELU, gp_vat_least(x, zero) + alpha * gp_expm1(gp_vat_most(x, zero)))                                             \
    X(GELU_ERF, gp_gelu_erf(x))                                                                                        \
    X(GELU_TANH, gp_gelu_tanh(x))                                                                                      \
    X(HARD_SIGMOID, gp_vclamp(alpha * x + beta, zero, gp_splat(1.0f)))                                                 \
    X(SOFTPLUS, gp_softplus(x, beta))                                                                                  \
    X(ERF, gp_erf(x))

GP_FOR_EACH_VECTOR_OP(GP_DEFINE_VECTORS)

/* The exponents in an array: with one in a register GCC splits the loop by its value and vectorises no part. */
static void op_POW_SCALAR(const gp_instr *instr, float *dst, const float *a, const float *b, const float *c, int64_t n)
{
    float exponents[GP_BLOCK];
    op_CONST(&(gp_instr){.alpha = instr->beta}, exponents, b, b, c, n);
    op_POW(instr, dst, a, exponents, c, n);
}

/* sin or cos of all elements, then a pass of the C library's function over those too large for the vector loop. */
#define GP_DEFINE_TRIG(NAME, fast, exact)                                                                              \
    static void op_##NAME(const gp_instr *instr, float *dst, const float *a, const float *b, const float *c, int64_t n) \
    {                                                                                                                  \
        (void)instr, (void)b, (void)c;                                                                                 \
        float in[GP_BLOCK];                                                                                            \
        int32_t n_huge = 0;                                                                                            \
        for (int64_t i = 0; i < (n & -GP_LANES); i++) {                                                                \
            in[i] = a[i];                                                                                              \
            n_huge += fabsf(a[i]) > GP_TRIG_LIMIT;                                                                     \
        }                                                                                                              \
        for (int64_t i = 0; i < (n & -GP_LANES); i++)                                                                  \
            dst[i] = fast(in[i]);                                                                                      \
        for (int64_t i = 0; n_huge > 0 && i < n; i++)                                                                  \
            if (fabsf(in[i]) > GP_TRIG_LIMIT)                                                                          \
                dst[i] = exact(in[i]);                                                                                 \
    }

GP_DEFINE_TRIG(SIN, gp_sin, sinf)
GP_DEFINE_TRIG(COS, gp_cos, cosf)

/* Through the memory of the type and back. */
static void op_NARROW(const gp_instr *instr, float *dst, const float *a, const float *b, const float *c, int64_t n)
{
    (void)b, (void)c;
    uint64_t elements[GP_BLOCK]; /* as wide as the widest type */
    GP_KERNEL(store_row)((int)instr->alpha, a, elements, 0, 1, n);
    GP_KERNEL(load_row)((int)instr->alpha, dst, elements, 0, 1, n);
}

#define GP_ROW(NAME, expression) [GP_OP_##NAME] = op_##NAME,

static instr_fn *const INSTRUCTIONS[] = {
    [GP_OP_POW_SCALAR] = op_POW_SCALAR, [GP_OP_SIN] = op_SIN, [GP_OP_COS] = op_COS,
    [GP_OP_NARROW] = op_NARROW, GP_FOR_EACH_OP(GP_ROW) GP_FOR_EACH_VECTOR_OP(GP_ROW)
};

/* Zeros from n up to the next multiple of GP_LANES. */
static void fill_up(float *values, int64_t n)
{
    for (int64_t i = n; i & (GP_LANES - 1); i++)
        values[i] = 0;
}

static void load_run(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    GP_KERNEL(load_row)(dtype, values, memory, offset, stride, n);
}

static void store_run(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    GP_KERNEL(store_row)(dtype, values, memory, offset, stride, n);
}

/* Load n elements. A row that repeats (a bias along the last axis) is read once and then copied within L1. */
static void load_view(const gp_view *view, void *const *args, float *values, int64_t first, int64_t n)
{
    const int repeats = view->ndim == 2 && view->stride[1] == 0 && view->dim[0] < n;
    int64_t done = repeats ? view->dim[0] : n;
    gp_move_view(view, args, (char *)values, sizeof(float), first, done, load_run);
    while (done < n) {
        const int64_t more = n - done < done ? n - done : done;
        memcpy(values + done, values, more * sizeof(float));
        done += more;
    }
    fill_up(values, n);
}

/* Where n elements lie in f32 one behind the other, or NULL. */
static float *find_run(const gp_view *view, void *const *args, int64_t first, int64_t n)
{
    if (view->dtype != GP_F32 || view->stride[0] != 1)
        return NULL;
    gp_position p;
    gp_locate(view, first, &p);
    return view->dim[0] - p.at[0] < n ? NULL : (float *)args[view->arg] + p.offset;
}

/* Registers are read and written where the program says that nothing notices (gp_instr.direct), if whole lanes lie
 * there: an epilogue of one operation then makes one pass over its elements instead of three. */
static void run_block(const gp_eltwise *program, void *const *args, const float *acc, int64_t first, int64_t n,
                      int64_t block, float *room)
{
    const float *r[GP_ELTWISE_REGISTERS]; /* where the values of a register lie */
    for (int64_t i = 0; i < program->nregisters; i++)
        r[i] = room + i * block; /* operands that an instruction has not are read too, and thrown away */
    const gp_view *views = gp_eltwise_views(program);
    const gp_instr *instr = gp_eltwise_instrs(program), *const end = instr + program->ninstrs;
    const int64_t padded = (n + GP_LANES - 1) & -GP_LANES;
    for (; instr < end; instr++) {
        const int is_direct = instr->direct && n == padded;
        if (instr->op == GP_OP_STORE) {
            gp_move_view(views + instr->dst, args, (char *)r[instr->a], sizeof(float), first, n, store_run);
            continue;
        }
        float *to = room + instr->dst * block, *run = NULL;
        if (instr->op == GP_OP_LOAD) {
            run = is_direct ? find_run(views + instr->a, args, first, n) : NULL;
            if (!run)
                load_view(views + instr->a, args, to, first, n);
        } else if (instr->op == GP_OP_ACC) {
            run = is_direct ? (float *)acc : NULL;
            if (!run) {
                memcpy(to, acc, n * sizeof(float));
                fill_up(to, n);
            }
        } else {
            run = is_direct ? find_run(views + instr[1].dst, args, first, n) : NULL;
            INSTRUCTIONS[instr->op](instr, run ? run : to, r[instr->a], r[instr->b], r[instr->c], padded);
        }
        r[instr->dst] = run ? run : to;
        if (run && instr->op != GP_OP_LOAD && instr->op != GP_OP_ACC)
            instr++; /* the STORE behind it is done */
    }
}

void GP_KERNEL(eltwise_run)(const gp_eltwise *program, void *const *args, const float *acc, int64_t first, int64_t last)
{
    _Alignas(64) float room[GP_ELTWISE_ROOM];
    const int64_t most = GP_ELTWISE_ROOM / program->nregisters & -GP_LANES, block = most < GP_BLOCK ? most : GP_BLOCK;
    for (int64_t at = first; at < last; at += block) {
        const int64_t left = last - at;
        run_block(program, args, acc ? acc + (at - first) : NULL, at, left < block ? left : block, block, room);
    }
}

GP_DEFINE_KERNEL(f32_eltwise)
{
    const gp_eltwise *program = params;
    const int64_t last = end * GP_ELTWISE_TASK;
    GP_KERNEL(eltwise_run)(program, args, NULL, begin * GP_ELTWISE_TASK, last < program->size ? last : program->size);
}

const gp_kernel_entry GP_KERNEL(eltwise_table)[] = {
    GP_ENTRY(f32_eltwise, gp_eltwise),
    GP_INNER(gp_view),
    GP_INNER(gp_instr),
    GP_TABLE_END,
};
