/* Elementwise programs on integers and on f64: the format of gp_eltwise.h with registers of u8, s32, s64, u64 or f64.
 *
 * Integers are exact. Their arithmetic wraps, as does a store into a narrower type; divided by 0 they are 0.
 */
#include "core/gp_convert.h"
#include "eltwise/gp_eltwise.h"

/* ---- integers ---- */

/* GP_UNSIGNED: the type in which registers wrap around, at least as wide as they are. */
#define GP_WRAP(x, operator, y) ((GP_UNSIGNED)(x) operator(GP_UNSIGNED)(y))
#define GP_IS_SHIFT(y) ((GP_UNSIGNED)(y) < 8 * sizeof(GP_UNSIGNED))

#define GP_INTEGER_OPS(X)                                                                                              \
    GP_OPS_OF_ALL_TYPES(X)                                                                                             \
    X(ADD, GP_WRAP(x, +, y))                                                                                           \
    X(SUB, GP_WRAP(x, -, y))                                                                                           \
    X(MUL, GP_WRAP(x, *, y))                                                                                           \
    X(NEG, GP_WRAP(0, -, x))                                                                                           \
    X(BIT_NOT, ~x)                                                                                                     \
    X(BIT_AND, x &y)                                                                                                   \
    X(BIT_OR, x | y)                                                                                                   \
    X(BIT_XOR, x ^ y)                                                                                                  \
    X(SHIFT_LEFT, GP_IS_SHIFT(y) ? (GP_UNSIGNED)x << y : 0)

#define GP_BYTE_TYPES(X)                                                                                               \
    X(U8, uint8_t, m, v)                                                                                               \
    X(S8, int8_t, m, v)                                                                                                \
    X(BOOLEAN, uint8_t, m != 0, v != 0)

#define GP_NARROW_TYPES(X)                                                                                             \
    GP_BYTE_TYPES(X)                                                                                                   \
    X(S16, int16_t, m, v)                                                                                              \
    X(U16, uint16_t, m, v)                                                                                             \
    X(S32, int32_t, m, v)

#define GP_INTEGER_TYPES(X)                                                                                            \
    GP_NARROW_TYPES(X)                                                                                                 \
    X(U32, uint32_t, m, v)                                                                                             \
    X(S64, int64_t, m, v)                                                                                              \
    X(U64, uint64_t, m, v)

/* Cut off; the quotient that does not fit wraps. */
static inline int64_t divide(int64_t x, int64_t y)
{
    return y == 0 ? 0 : y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
}

/* With the sign of x. */
static inline int64_t remainder_of(int64_t x, int64_t y)
{
    return y == 0 || y == -1 ? 0 : x % y;
}

/* With the sign of y. */
static inline int64_t modulo(int64_t x, int64_t y)
{
    const int64_t r = remainder_of(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

/* The same of 32 bits, free of branches: f64 holds such quotients, and those that are not whole are far from it. */
static inline int32_t divide_s32(int32_t x, int32_t y)
{
    const int32_t by = (y == 0) | (y == -1) ? 1 : y, quotient = (int32_t)((double)x / by);
    const int32_t negative = (int32_t)(0 - (uint32_t)x), divided = y == -1 ? negative : quotient;
    return y == 0 ? 0 : divided;
}

static inline int32_t remainder_s32(int32_t x, int32_t y)
{
    const int32_t by = (y == 0) | (y == -1) ? 1 : y;
    return x - (int32_t)((double)x / by) * by;
}

static inline int32_t modulo_s32(int32_t x, int32_t y)
{
    const int32_t r = remainder_s32(x, y);
    return (r != 0) & ((r < 0) != (y < 0)) ? r + y : r;
}

/* Wraps. */
static inline uint64_t power_of_whole(uint64_t x, uint64_t y)
{
    uint64_t power = 1;
    for (; y; y >>= 1, x *= x)
        power = y & 1 ? power * x : power;
    return power;
}

/* Wraps; to a negative power cut off, and 0 where it is infinite. */
static inline int64_t power_of(int64_t x, int64_t y)
{
    if (y < 0)
        return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    return (int64_t)power_of_whole((uint64_t)x, (uint64_t)y);
}

#define GP_SIGNED_OPS(X)                                                                                               \
    GP_INTEGER_OPS(X)                                                                                                  \
    X(ABS, x < 0 ? GP_WRAP(0, -, x) : (GP_UNSIGNED)x)                                                                  \
    X(SIGN, (x > 0) - (x < 0))                                                                                         \
    X(SHIFT_RIGHT, GP_IS_SHIFT(y) ? x >> y : -(GP_REG)(x < 0))                                                         \
    X(POW, power_of(x, y))                                                                                             \
    X(POW_SCALAR, power_of(x, (int64_t)beta))

#define GP_UNSIGNED_OPS(X)                                                                                             \
    GP_INTEGER_OPS(X)                                                                                                  \
    X(ABS, x)                                                                                                          \
    X(SIGN, x != 0)                                                                                                    \
    X(SHIFT_RIGHT, GP_IS_SHIFT(y) ? (GP_UNSIGNED)x >> y : 0)                                                           \
    X(DIV, y ? x / y : 0)                                                                                              \
    X(MOD, y ? x % y : 0)                                                                                              \
    X(FMOD, y ? x % y : 0)                                                                                             \
    X(POW, power_of_whole(x, y))                                                                                       \
    X(POW_SCALAR, power_of_whole(x, (uint64_t)beta))

#define GP_UNSIGNED uint32_t

#define GP_REG uint8_t
#define GP_REG_DTYPE GP_U8
#define GP_NAME(name) u8_##name
#define GP_OTHER_OPS(X)
#define GP_TYPES GP_BYTE_TYPES
#define GP_OPS GP_UNSIGNED_OPS
#include "eltwise/gp_interpreter.h"

#define GP_REG int32_t
#define GP_REG_DTYPE GP_S32
#define GP_NAME(name) s32_##name
#define GP_OTHER_OPS(X)
#define GP_TYPES GP_NARROW_TYPES
#define GP_OPS(X)                                                                                                      \
    GP_SIGNED_OPS(X)                                                                                                   \
    X(DIV, divide_s32(x, y))                                                                                           \
    X(MOD, modulo_s32(x, y))                                                                                           \
    X(FMOD, remainder_s32(x, y))
#include "eltwise/gp_interpreter.h"

#undef GP_UNSIGNED
#define GP_UNSIGNED uint64_t

#define GP_REG int64_t
#define GP_REG_DTYPE GP_S64
#define GP_NAME(name) s64_##name
#define GP_OTHER_OPS(X)
#define GP_TYPES GP_INTEGER_TYPES
#define GP_OPS(X)                                                                                                      \
    GP_SIGNED_OPS(X)                                                                                                   \
    X(DIV, divide(x, y))                                                                                               \
    X(MOD, modulo(x, y))                                                                                               \
    X(FMOD, remainder_of(x, y))
#include "eltwise/gp_interpreter.h"

#define GP_REG uint64_t
#define GP_REG_DTYPE GP_U64
#define GP_NAME(name) u64_##name
#define GP_OTHER_OPS(X)
#define GP_TYPES GP_INTEGER_TYPES
#define GP_OPS GP_UNSIGNED_OPS
#include "eltwise/gp_interpreter.h"

/* ---- f64 ---- */

/* NaN quantised, as of f32. */
static inline double least_of_nan(double x)
{
    return x == x ? x : -INFINITY;
}

/* Limited to [lo, hi]; NaN stays. */
static inline double clamp(double x, double lo, double hi)
{
    const double above = x < lo ? lo : x;
    return above > hi ? hi : above;
}

/* To nearest even within [lo, hi]; NaN gives 0. */
static inline double to_whole(double x, double lo, double hi)
{
    return x == x ? clamp(rint(x), lo, hi) : 0;
}

/* The same within 32 bits, to which vectors convert wherever there are any. */
static inline int32_t to_s32(double x, double lo, double hi)
{
    return (int32_t)to_whole(x, lo, hi);
}

static inline int64_t to_s64(double x)
{
    return x >= 0x1p63 ? INT64_MAX : (int64_t)to_whole(x, -0x1p63, 0x1.fffffffffffffp62);
}

static inline uint64_t to_u64(double x)
{
    return x >= 0x1p64 ? UINT64_MAX : (uint64_t)to_whole(x, 0, 0x1.fffffffffffffp63);
}

/* To f32 by rounding to odd, after which rounding to 22 or fewer bits equals rounding once: cut off towards 0, with a last bit
 * that says whether anything was. Source: Boldo and Melquiond, "When double rounding is odd", 2005. */
static inline float to_odd(double x)
{
    const float nearest = (float)x;
    const double back = nearest;
    const uint32_t cut = gp_bits(nearest) - (fabs(back) > fabs(x));
    return gp_float(cut | (back != x));
}

/* Elements of types whose every value is a float, by way of some floats in L1. */
enum { PART = 512 };

static void f64_load_other(int dtype, double *restrict to, const void *memory, int64_t offset, int64_t stride, int64_t n)
{
    float part[PART];
    for (int64_t i = 0; i < n; i += PART) {
        const int64_t count = n - i < PART ? n - i : PART;
        gp_load_row(dtype, part, memory, offset + i * stride, stride, count);
        for (int64_t k = 0; k < count; k++)
            to[i + k] = part[k];
    }
}

static void f64_store_other(int dtype, const double *restrict from, void *memory, int64_t offset, int64_t stride, int64_t n)
{
    float part[PART];
    for (int64_t i = 0; i < n; i += PART) {
        const int64_t count = n - i < PART ? n - i : PART;
        for (int64_t k = 0; k < count; k++)
            part[k] = to_odd(from[i + k]);
        gp_store_row(dtype, part, memory, offset + i * stride, stride, count);
    }
}

/* What is cut off for a narrow integer, stored without a pass of its own: whatever lies beyond such types saturates, so that
 * floats hold the rest of it. */
static int f64_store_result(const gp_instr *instr, const gp_view *view, void *const *args, const double *const *r,
                            uint32_t ones, int64_t first, int64_t n)
{
    const int is_narrow = view->dtype == GP_U8 || view->dtype == GP_S8 || view->dtype == GP_U16 || view->dtype == GP_S16;
    const int64_t offset = instr->op == GP_OP_TRUNC && is_narrow ? gp_find_run(view, first, n) : -1;
    float part[PART];
    (void)ones;
    if (offset < 0)
        return 0;
    for (int64_t i = 0; i < n; i += PART) {
        const int64_t count = n - i < PART ? n - i : PART;
        for (int64_t k = 0; k < count; k++)
            part[k] = (float)trunc(r[instr->a][i + k]);
        gp_store_row(view->dtype, part, args[view->arg], offset + i, 1, count);
    }
    return 1;
}

#define GP_REG double
#define GP_REG_DTYPE GP_F64
#define GP_STORES_RESULTS
#define GP_NAME(name) f64_##name
#define GP_OTHER_OPS(X)
#define GP_OTHER_TYPES
#define GP_TYPES(X)                                                                                                    \
    X(F64, double, m, v)                                                                                               \
    X(F32, float, m, v)                                                                                                \
    X(S32, int32_t, m, to_s32(v, INT32_MIN, INT32_MAX))                                                                \
    X(S64, int64_t, m, to_s64(v))                                                                                      \
    X(U32, uint32_t, m, to_whole(v, 0, UINT32_MAX))                                                                    \
    X(U64, uint64_t, m, to_u64(v))
#define GP_OPS(X)                                                                                                      \
    GP_OPS_OF_ALL_TYPES(X)                                                                                             \
    GP_OPS_OF_FLOATS(X)                                                                                                \
    X(MOD, gp_modulo(x, y))                                                                                            \
    X(FMOD, fmod(x, y))                                                                                                \
    X(POW, pow(x, y))                                                                                                  \
    X(POW_SCALAR, pow(x, beta))                                                                                        \
    X(QUANTIZE_BY, least_of_nan(rint(x / y) + z))                                                                       \
    X(DEQUANTIZE_BY, (x - z) * y)                                                                                      \
    X(ABS, fabs(x))                                                                                                    \
    X(EXP, exp(x))                                                                                                     \
    X(LOG, log(x))                                                                                                     \
    X(ROUND, rint(x))                                                                                                  \
    X(SIGMOID, 1 / (1 + exp(-x)))                                                                                      \
    X(SQRT, sqrt(x))                                                                                                   \
    X(TANH, tanh(x))                                                                                                   \
    X(CLAMP, clamp(x, alpha, beta))                                                                                    \
    X(ERF, erf(x))                                                                                                     \
    X(FLOOR, floor(x))                                                                                                 \
    X(CEIL, ceil(x))                                                                                                   \
    X(TRUNC, trunc(x))                                                                                                 \
    X(SIN, sin(x))                                                                                                     \
    X(COS, cos(x))                                                                                                     \
    X(TAN, tan(x))                                                                                                     \
    X(ASIN, asin(x))                                                                                                   \
    X(ACOS, acos(x))                                                                                                   \
    X(ATAN, atan(x))                                                                                                   \
    X(SINH, sinh(x))                                                                                                   \
    X(COSH, cosh(x))                                                                                                   \
    X(ASINH, asinh(x))                                                                                                 \
    X(ACOSH, acosh(x))                                                                                                 \
    X(ATANH, atanh(x))
#include "eltwise/gp_interpreter.h"

const gp_kernel_entry GP_KERNEL(eltwise_wide_table)[] = {
    GP_ENTRY(u8_eltwise, gp_eltwise),
    GP_ENTRY(s32_eltwise, gp_eltwise),
    GP_ENTRY(s64_eltwise, gp_eltwise),
    GP_ENTRY(u64_eltwise, gp_eltwise),
    GP_ENTRY(f64_eltwise, gp_eltwise),
    GP_TABLE_END,
};
