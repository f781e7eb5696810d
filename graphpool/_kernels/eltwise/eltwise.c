/* Elementwise programs on floats, by themselves and as epilogues. */
#include "core/gp_convert.h"
#include "core/gp_vmath.h"
#include "eltwise/gp_eltwise.h"

static void f32_load_run(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    gp_load_row(dtype, values, memory, offset, stride, n);
}

static void f32_store_run(int dtype, void *values, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    gp_store_row(dtype, values, memory, offset, stride, n);
}

/* NaN quantised: what saturates at the least integer, as ONNX and ONNX Runtime have it. */
static inline float least_of_nan(float x)
{
    return x == x ? x : -INFINITY;
}

/* NaN passes through RELU, CLAMP, MAX and MIN. */
#define GP_OPS(X)                                                                                                      \
    GP_OPS_OF_ALL_TYPES(X)                                                                                             \
    GP_OPS_OF_FLOATS(X)                                                                                                \
    X(ABS, fabsf(x))                                                                                                   \
    X(RELU, x < 0 ? 0.0f : x)                                                                                          \
    X(ROUND, rintf(x))                                                                                                 \
    X(QUANTIZE, least_of_nan(rintf(x / alpha) + beta))                                                                  \
    X(DEQUANTIZE, (x - beta) * alpha)                                                                                  \
    X(SQRT, sqrtf(x))                                                                                                  \
    X(LEAKY_RELU, x < 0 ? alpha * x : x)                                                                               \
    X(FLOOR, floorf(x))                                                                                                \
    X(CEIL, ceilf(x))                                                                                                  \
    X(RSQRT, 1.0f / sqrtf(x))                                                                                          \
    X(TRUNC, truncf(x))                                                                                                \
    X(TAN, tanf(x))                                                                                                    \
    X(SINH, sinhf(x))                                                                                                  \
    X(COSH, coshf(x))                                                                                                  \
    X(ASINH, asinhf(x))                                                                                                \
    X(ACOSH, acoshf(x))                                                                                                \
    X(ATANH, atanhf(x))                                                                                                \
    X(SQUARED_DIFFERENCE, (x - y) * (x - y))                                                                           \
    X(POW, gp_pow(x, y))                                                                                               \
    X(PRELU, x > 0 ? x : x * y)                                                                                        \
    X(QUANTIZE_BY, least_of_nan(rintf(x / y) + z))                                                                      \
    X(DEQUANTIZE_BY, (x - z) * y)                                                                                      \
    X(FMA, GP_FMA(x, y, z))

/* What takes more than an operation or two, in vectors. */
#define GP_VECTOR_OPS(X)                                                                                               \
    X(HARD_SWISH, x *(gp_vclamp(x + 3.0f, zero, gp_splat(6.0f)) * (1.0f / 6.0f)))                                      \
    X(LOG, gp_log(x))                                                                                                  \
    X(MISH, gp_mish(x))                                                                                                \
    X(SIGMOID, gp_sigmoid(x))                                                                                          \
    X(CLAMP, gp_vclamp(x, alpha, beta))                                                                                \
    X(ELU, gp_vat_least(x, zero) + alpha * gp_expm1(gp_vat_most(x, zero)))                                             \
    X(GELU_ERF, gp_gelu_erf(x))                                                                                        \
    X(GELU_TANH, gp_gelu_tanh(x))                                                                                      \
    X(HARD_SIGMOID, gp_vclamp(alpha * x + beta, zero, gp_splat(1.0f)))                                                 \
    X(SOFTPLUS, gp_softplus(x, beta))                                                                                  \
    X(ERF, gp_erf(x))                                                                                                  \
    X(ASIN, gp_asin(x))                                                                                                \
    X(ACOS, gp_acos(x))                                                                                                \
    X(ATAN, gp_atan(x))

#define GP_OTHER_OPS(X) GP_VECTOR_OPS(X) X(EXP, ) X(TANH, ) X(POW_SCALAR, ) X(SIN, ) X(COS, ) X(MOD, ) X(FMOD, )

/* A QUANTIZE, or one by loaded scales and zero points, and the STORE of bytes behind it at once, so that divisions and stores
 * do not wait for each other. */
static int f32_store_result(const gp_instr *instr, const gp_view *view, void *const *args, const float *const *r,
                            uint32_t ones, int64_t first, int64_t n)
{
    enum { SCALE = 2, ZERO_POINT = 4 }; /* operands b and c */
    const int is_by = instr->op == GP_OP_QUANTIZE_BY, are_ones = ones == (SCALE | ZERO_POINT);
    if ((instr->op != GP_OP_QUANTIZE && !is_by) || (view->dtype != GP_U8 && view->dtype != GP_S8) || (ones && !are_ones))
        return 0;
    const int64_t offset = gp_find_run(view, first, n);
    if (offset < 0)
        return 0;
    gp_round_row(view->dtype, r[instr->a], (char *)args[view->arg] + offset, n,
                 is_by ? r[instr->b] : &instr->alpha, is_by ? r[instr->c] : &instr->beta, is_by && !are_ones);
    return 1;
}

#define GP_REG float
#define GP_REG_DTYPE GP_F32
#define GP_STORES_RESULTS
#define GP_NAME(name) f32_##name
#include "eltwise/gp_interpreter.h"

#define GP_F32_OP(NAME)                                                                                                \
    static void f32_##NAME(const gp_instr *instr, float *dst, const float *a, const float *b, const float *c, int64_t n,   \
                           uint32_t ones)

#define GP_DEFINE_VECTORS(NAME, expression)                                                                            \
    GP_F32_OP(NAME)                                                                                                    \
    {                                                                                                                  \
        const gp_vf alpha = gp_splat(instr->alpha), beta = gp_splat(instr->beta), zero = {0};                          \
        (void)b, (void)c, (void)alpha, (void)beta, (void)zero, (void)ones;                                                         \
        for (int64_t i = 0; i < (n & -f32_LANES); i += GP_VL) {                                                        \
            const gp_vf x = gp_load(a + i);                                                                            \
            gp_store(dst + i, expression);                                                                             \
        }                                                                                                              \
    }

GP_VECTOR_OPS(GP_DEFINE_VECTORS)

/* What waits for one step of a vector long enough that four are taken at once. */
#define GP_DEFINE_EACH(NAME, function)                                                                                 \
    GP_F32_OP(NAME)                                                                                                    \
    {                                                                                                                  \
        (void)instr, (void)b, (void)c, (void)ones;                                                                     \
        const int64_t end = n & -f32_LANES;                                                                            \
        int64_t i = 0;                                                                                                 \
        for (; i + 4 * GP_VL <= end; i += 4 * GP_VL) {                                                                 \
            gp_vf x[4];                                                                                                \
            GP_EACH(k, 4)                                                                                              \
                x[k] = gp_load(a + i + k * GP_VL);                                                                     \
            function(x, 4);                                                                                            \
            GP_EACH(k, 4)                                                                                              \
                gp_store(dst + i + k * GP_VL, x[k]);                                                                   \
        }                                                                                                              \
        for (; i < end; i += GP_VL) {                                                                                  \
            gp_vf x = gp_load(a + i);                                                                                  \
            function(&x, 1);                                                                                           \
            gp_store(dst + i, x);                                                                                      \
        }                                                                                                              \
    }

GP_DEFINE_EACH(EXP, gp_exp_each)
GP_DEFINE_EACH(TANH, gp_tanh_each)

/* The exponents in an array: with one in a register GCC splits the loop by its value and vectorises no part. */
GP_F32_OP(POW_SCALAR)
{
    float exponents[f32_GROUP];
    (void)ones;
    f32_CONST(&(gp_instr){.alpha = instr->beta}, exponents, b, b, c, f32_GROUP, 0);
    f32_POW(instr, dst, a, exponents, c, n, 2);
}

/* sin or cos of all elements, then a pass of the C library's function over those too large for the vector loop. */
#define GP_DEFINE_TRIG(NAME, fast, exact)                                                                              \
    GP_F32_OP(NAME)                                                                                                    \
    {                                                                                                                  \
        (void)instr, (void)b, (void)c, (void)ones;                                                                     \
        float in[GP_BLOCK];                                                                                            \
        int32_t n_huge = 0;                                                                                            \
        for (int64_t i = 0; i < (n & -f32_LANES); i++) {                                                               \
            in[i] = a[i];                                                                                              \
            n_huge += fabsf(a[i]) > GP_TRIG_LIMIT;                                                                     \
        }                                                                                                              \
        for (int64_t i = 0; i < (n & -f32_LANES); i++)                                                                 \
            dst[i] = fast(in[i]);                                                                                      \
        for (int64_t i = 0; n_huge > 0 && i < n; i++)                                                                  \
            if (fabsf(in[i]) > GP_TRIG_LIMIT)                                                                          \
                dst[i] = exact(in[i]);                                                                                 \
    }

GP_DEFINE_TRIG(SIN, gp_sin, sinf)
GP_DEFINE_TRIG(COS, gp_cos, cosf)

/* Remainders in f64, which are exact where the quotient is below 2^27, then a pass of the C library's function over
 * the other ones. */
#define GP_DEFINE_REMAINDER(NAME, finish, exact)                                                                       \
    GP_F32_OP(NAME)                                                                                                    \
    {                                                                                                                  \
        (void)instr, (void)c;                                                                                          \
        float in[GP_BLOCK], by[GP_BLOCK];                                                                              \
        int32_t n_large = 0;                                                                                           \
        for (int64_t i = 0; i < (n & -f32_LANES); i++) {                                                               \
            in[i] = a[ones & 1 ? 0 : i];                                                                               \
            by[i] = b[ones & 2 ? 0 : i];                                                                               \
        }                                                                                                              \
        for (int64_t i = 0; i < (n & -f32_LANES); i++) {                                                               \
            const double x = in[i], y = by[i], whole = trunc(x / y), rest = whole == 0 ? x : x - whole * y;            \
            n_large += !(fabs(whole) < GP_LARGE_QUOTIENT);                                                             \
            dst[i] = (float)(finish);                                                                                  \
        }                                                                                                              \
        for (int64_t i = 0; n_large > 0 && i < n; i++)                                                                 \
            if (!(fabs(trunc((double)in[i] / by[i])) < GP_LARGE_QUOTIENT))                                             \
                dst[i] = (float)exact(in[i], by[i]);                                                                   \
    }

#define GP_LARGE_QUOTIENT 0x1p27

GP_DEFINE_REMAINDER(MOD, rest == 0 ? copysign(0, y) : (rest < 0) != (y < 0) ? rest + y : rest, gp_modulo)
GP_DEFINE_REMAINDER(FMOD, copysign(rest, x), fmod)

void gp_eltwise_run(const gp_eltwise *program, void *const *args, const float *acc, int64_t first, int64_t last)
{
    f32_run(program, args, acc, first, last);
}

const gp_kernel_entry GP_KERNEL(eltwise_table)[] = {
    GP_ENTRY(f32_eltwise, gp_eltwise),
    GP_INNER(gp_view),
    GP_INNER(gp_instr),
    GP_INNER(gp_eltwise_op),
    GP_NUMBER(GP_ELTWISE_TASK),
    GP_NUMBER(GP_ELTWISE_REGISTERS),
    GP_TABLE_END,
};
