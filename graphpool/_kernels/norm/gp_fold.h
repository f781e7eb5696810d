/* Folds of rows of any type: a sum, a product, or an extreme.
 *
 * Integers wrap around; a NaN wins in extremes. Rows side by side are folded in lanes, so many that compilers make vectors of
 * them instead of straight code.
 */
#ifndef GP_FOLD_H
#define GP_FOLD_H

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Types: X(NAME, C type, type in which it wraps, least, largest). */
#define GP_WIDE_TYPES(X)                                                                                               \
    X(s32, int32_t, uint32_t, INT32_MIN, INT32_MAX)                                                                    \
    X(u32, uint32_t, uint32_t, 0, UINT32_MAX)                                                                          \
    X(s64, int64_t, uint64_t, INT64_MIN, INT64_MAX)                                                                    \
    X(u64, uint64_t, uint64_t, 0, UINT64_MAX)                                                                          \
    X(f64, double, double, -INFINITY, INFINITY)

#define GP_NARROW_TYPES(X)                                                                                             \
    X(s8, int8_t, uint32_t, INT8_MIN, INT8_MAX)                                                                        \
    X(u8, uint8_t, uint32_t, 0, UINT8_MAX)                                                                             \
    X(s16, int16_t, uint32_t, INT16_MIN, INT16_MAX)                                                                    \
    X(u16, uint16_t, uint32_t, 0, UINT16_MAX)

#define GP_FOLD_ADD(type, wide, a, b) (type)((wide)(a) + (wide)(b))
#define GP_FOLD_MUL(type, wide, a, b) (type)((wide)(a) * (wide)(b))
#define GP_FOLD_MAX(type, wide, a, b) (b) > (a) || (b) != (b) ? (b) : (a)
#define GP_FOLD_MIN(type, wide, a, b) (b) < (a) || (b) != (b) ? (b) : (a)

/* NAME_OP_row: `total` folded with n elements at x, x + stride, ...; NAME_OP_columns: each of w totals with one of w. */
#define GP_DEFINE_FOLD(NAME, OP, type, wide)                                                                           \
    static inline __attribute__((unused)) type NAME##_##OP##_row(const type *restrict x, int64_t n, int64_t stride,    \
                                                                 type total)                                           \
    {                                                                                                                  \
        enum { LANES = 256 / sizeof(type) };                                                                           \
        int64_t i = 0;                                                                                                 \
        if (stride == 1 && n >= LANES) {                                                                               \
            type lanes[LANES];                                                                                         \
            memcpy(lanes, x, sizeof lanes);                                                                            \
            for (i = LANES; i + LANES <= n; i += LANES)                                                                \
                for (int64_t k = 0; k < LANES; k++)                                                                    \
                    lanes[k] = GP_FOLD_##OP(type, wide, lanes[k], x[i + k]);                                           \
            for (int64_t half = LANES / 2; half; half /= 2)                                                            \
                for (int64_t k = 0; k < half; k++)                                                                     \
                    lanes[k] = GP_FOLD_##OP(type, wide, lanes[k], lanes[k + half]);                                    \
            total = GP_FOLD_##OP(type, wide, total, lanes[0]);                                                         \
        }                                                                                                              \
        for (; i < n; i++)                                                                                             \
            total = GP_FOLD_##OP(type, wide, total, x[i * stride]);                                                    \
        return total;                                                                                                  \
    }                                                                                                                  \
    static inline __attribute__((unused)) void NAME##_##OP##_columns(const type *restrict x, int64_t stride, int64_t w, \
                                                                     type *restrict totals)                            \
    {                                                                                                                  \
        for (int64_t j = 0; j < w; j++)                                                                                \
            totals[j] = GP_FOLD_##OP(type, wide, totals[j], x[j * stride]);                                            \
    }

#endif
